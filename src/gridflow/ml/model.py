"""A trained model in the driver: load it, save it, apply it to DataFrames.

The driver doesn't import TensorFlow for this, except to load the model.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._files.local import replacing
from gridflow._files.transfer import destination, put
from gridflow.errors import InvalidArgument
from gridflow.ml.keras_file import KerasFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame


class TrainedModel(KerasFile):
    """The Keras model that a training function returned.

    Parameters
    ----------
    header : mapping
        The result of `gridflow._keras.results.pack`.
    folder : Path
        Folder of its file.

    Attributes
    ----------
    path : Path
        The ``.keras`` file.
    header : dict
        The header.
    """

    @property
    def inputs(self) -> dict[str, list[int | None]]:
        """Shapes of the model's inputs by name, in the order in which `predict_udf` takes them."""
        return dict(self.header["inputs"])

    @property
    def outputs(self) -> dict[str, list[int | None]]:
        """Shapes of the model's outputs by name."""
        return dict(self.header["outputs"])

    def load(
        self,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        safe_mode: bool = True,
        compile: bool = True,  # noqa: A002 (that of Keras)
    ) -> Any:
        """Return the model itself; imports TensorFlow into this process.

        Parameters
        ----------
        custom_objects : mapping of str to class or function, optional
            Custom layers, losses … that aren't registered with Keras.
        safe_mode : bool, default True
            Reject a model that contains Python code, such as that of a Lambda layer, or that
            could do more than compute.
        compile : bool, default True
            Whether to restore its optimizer, loss and metrics, which prediction doesn't need.

        Raises
        ------
        GridflowError
            The model can't be loaded here; the message says what is missing.
        """
        from gridflow._keras import results

        options = {
            "custom_objects": dict(custom_objects or {}),
            "safe_mode": safe_mode,
            "compile": compile,
        }
        return results.unpack(self.header, self._folder, options)

    def save(self, path: str | Path) -> Path | str:
        """Copy the ``.keras`` file.

        Parameters
        ----------
        path : str or Path
            A local path, or one with a scheme in HDFS or an object store, such as
            ``"hdfs:///models/flights.keras"``. An existing file is replaced once the copy is
            complete.

        Returns
        -------
        Path or str
            The file's path, with its scheme if it has one.

        Raises
        ------
        InvalidArgument
            The name doesn't end in ``.keras``.
        GridflowError
            The file system can't be reached, or rejects the file.
        """
        if not str(path).endswith(".keras"):
            raise InvalidArgument(
                f"the file of a Keras model must end in .keras; got {str(path)!r}."
            )
        target = destination(path)
        if not isinstance(target, Path):
            put(self.path, target)
            return str(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as beside:
            shutil.copyfile(self.path, beside)
        return target

    def export(
        self,
        path: str | Path,
        *,
        format: str = "saved_model",  # noqa: A002 (as Keras calls it)
        check: Any = None,
        tolerance: float = 1e-4,
        custom_objects: Mapping[str, Any] | None = None,
        safe_mode: bool = True,
        **options: Any,
    ) -> Path | str:
        """Export the model for serving, with Keras's ``model.export``.

        Parameters
        ----------
        path : str or Path
            The folder of a SavedModel, or a file: ``.onnx``, ``.tflite``, ``.xml`` (OpenVINO),
            ``.pt2`` (torch). A local path, or one with a scheme in HDFS or an object store.
            It must not exist.
        format : {"saved_model", "onnx", "litert", "openvino", "torch"}, default "saved_model"
            Keras's backend in this process decides which ones are available.
        check : DataFrame, table, or dict of arrays, optional
            Rows that the exported model and this one both predict before anything is written:
            a column for each of the model's inputs, or the one column of its only input. They are
            collected in the driver: pass a sample, ``df.limit(1000)``.
        tolerance : float, default 1e-4
            How much predictions may differ, both absolutely and relative to their size.
        custom_objects, safe_mode
            As for `load`.
        **options
            Options of Keras's ``model.export`` for the format, such as ``opset_version=18``.

        Returns
        -------
        Path or str
            The path of the exported model, with its scheme if it has one.

        Raises
        ------
        MissingDependency
            The format, or its check, needs packages that aren't installed; the message names them.
        InvalidArgument
            The backend doesn't support the format, the path exists, or columns are missing.
        DataError
            The exported model's predictions differ; nothing is left at the path.
        GridflowError
            Keras can't export this model to the format.

        Examples
        --------
        >>> result.export("/models/flights/1", check=df.limit(1000))  # doctest: +SKIP
        >>> result.export("flights.onnx", format="onnx", check=df.limit(1000))  # doctest: +SKIP
        """
        from gridflow.ml.exporting import export

        return export(
            partial(self.load, custom_objects=custom_objects, safe_mode=safe_mode, compile=False),
            self.header["kind"],
            path,
            format=format,
            check=check,
            tolerance=tolerance,
            **options,
        )

    def predict_udf(
        self,
        *,
        output: str | None = None,
        batch_size: int = 1024,
        custom_objects: Mapping[str, Any] | None = None,
        safe_mode: bool = True,
        map: Callable[..., Any] | None = None,  # noqa: A002 (as ctx.dataset has it)
    ) -> Any:
        """Return a function of columns that predicts: `gridflow.predict_udf` of this model.

        Parameters
        ----------
        output : str, optional
            The output to return, of a model with several. Default: all, as a struct.
        batch_size : int, default 1024
            The maximum number of rows per call of the model.
        custom_objects, safe_mode
            As for `load`. Custom objects are sent to the executors.
        map : callable, optional
            What a batch's columns go through first, such as `gridflow.data.image_decoder`.

        Raises
        ------
        InvalidArgument
            An option is invalid; the returned function raises it if columns don't fit the inputs.

        Examples
        --------
        >>> predict = result.model.predict_udf()  # doctest: +SKIP
        >>> df.withColumn("p", predict("x"))  # doctest: +SKIP
        >>> df.withColumn("p", predict(age="age", city=df.home_town))  # doctest: +SKIP
        """
        from gridflow.ml.predict import predict_udf

        return predict_udf(
            self,
            outputs=output,
            batch_size=batch_size,
            custom_objects=custom_objects,
            safe_mode=safe_mode,
            map=map,
        )

    def predict(self, frame: DataFrame, **options: Any) -> DataFrame:
        """Return a DataFrame with a column more, the predictions: `gridflow.predict`.

        Parameters
        ----------
        frame : DataFrame
            A batch or a streaming DataFrame.
        **options
            Those of `gridflow.predict`, such as ``columns=["x"]``.

        Examples
        --------
        >>> result.model.predict(df, columns=["x"]).show(5)  # doctest: +SKIP
        """
        from gridflow.ml.inference.frames import predict

        return predict(frame, self, **options)

    def __repr__(self) -> str:
        return f"TrainedModel({str(self.path)!r})"

"""Where the coordinator listens, and how its agents find it."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest

from gridflow import LocalLauncher, NetworkError, Role, TensorflowDistributor, errors
from gridflow._spec.network import Network, past_proxies
from suite.new_process import skip_without


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": "0.0.0.0"}, "all interfaces, which isn't an address that agents can connect to"),
        ({"host": ""}, "host must be a host name or address; got ''"),
        ({"advertise": 7}, "advertise must be a host name or address; got 7"),
        ({"advertise": "0.0.0.0"}, "advertise must be the name"),
        ({"port": 0}, "port must be a number from 1 to 65535"),
        ({"port": (5, 70000)}, "port must be a number from 1 to 65535"),
        ({"port": (9, 8)}, "the first port is greater"),
        ({"port": True}, "port must be a number"),
        ({"port": "40000-"}, "port must be a number"),
        ({"port": "9-8"}, "the first port is greater"),
        (
            {"interface": "loo"},
            r"no network interface 'loo' with an address on this host; available: .*lo ",
        ),
        ({"interface": "lo", "host": "::1"}, "give either interface= or host="),
    ],
)
def test_what_can_not_be_is_refused_at_the_call(given, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(launcher=LocalLauncher(), network=Network(**given))


def test_what_the_user_says_comes_before_what_the_launcher_knows():
    def parsed(host=None, advertise=None, port=None):
        return Network(host=host, advertise=advertise, port=port).or_else("10.0.0.1", "driver")

    assert parsed() == Network(host="10.0.0.1", advertise="driver")
    assert parsed(host="10.0.0.2") == Network(host="10.0.0.2", advertise="10.0.0.2")
    assert parsed(advertise="gate") == Network(host="10.0.0.1", advertise="gate")
    assert parsed(port=7).ports == (7, 7)
    assert parsed(port="40000-40100").ports == (40000, 40100)
    assert parsed(port="40000").ports == (40000, 40000)
    assert parsed(host="::1").address(9) == "[::1]:9"
    assert parsed("0.0.0.0", "gate", (1, 2)).address(9) == "gate:9"
    assert str(parsed("0.0.0.0", "gate", (1, 2))) == "gate, bound to 0.0.0.0, ports 1 to 2"


def test_an_interface_stands_for_its_address():
    assert Network(interface="lo").or_else("10.0.0.1", "driver").host == "127.0.0.1"
    found = Network(interface="lo", advertise="gate", port=7).or_else("10.0.0.1", "driver")
    assert found == Network(host="127.0.0.1", advertise="gate", port=7)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_all_interfaces_and_a_range_of_ports_that_is_taken_in_part(monkeypatch):
    from gridflow._wire import server

    listening = []
    begin = server.CoordinatorServer.__init__

    def noted(self, host, identity, handler, port=0):
        begin(self, host, identity, handler, port)
        listening.append((host, self.port))

    monkeypatch.setattr(server.CoordinatorServer, "__init__", noted)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        first = taken.getsockname()[1]
        options = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
        network = {"host": "0.0.0.0", "advertise": "127.0.0.1"}
        distributor = TensorflowDistributor(
            **options, network=Network(**network, port=(first, first + 20))
        )
        assert distributor.run(len, "four").value == 4
        ((host, port),) = listening
        assert host == "0.0.0.0"
        assert first < port <= first + 20
        with pytest.raises(NetworkError, match=f"can't listen on port {first} of 0.0.0.0: Addr"):
            TensorflowDistributor(**options, network=Network(**network, port=first)).run(
                len, "four"
            )


def test_peers_are_added_to_what_grpc_already_reaches_without_a_proxy():
    peers = ["10.0.0.1:1", "10.0.0.1:2", "[fd77::2]:1", "worker-0.group:2222"]
    excepted = "10.0.0.1,fd77::2,worker-0.group"
    assert past_proxies({}, peers) == {"no_grpc_proxy": excepted}
    of_the_user = {"no_proxy": "*, own.example,"}
    assert past_proxies(of_the_user, peers) == {"no_grpc_proxy": f"*,own.example,{excepted}"}
    # gRPC reads one of the two.
    of_grpc = {**of_the_user, "no_grpc_proxy": "10.0.0.1"}
    assert past_proxies(of_grpc, peers) == {"no_grpc_proxy": excepted}
    assert past_proxies(past_proxies({}, peers), peers) == past_proxies({}, peers)


class Proxy(http.server.BaseHTTPRequestHandler):
    """A proxy that answers every page itself, and leads nowhere."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"by proxy")

    def do_CONNECT(self):
        self.server.asked.append(f"CONNECT {self.path}")
        self.send_error(503)

    def log_message(self, *words):
        """Say nothing."""


@pytest.fixture
def proxy():
    """Serve a proxy, which notes what it was asked for."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.asked = []
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def own_page(ctx, kind):
    """Train with all other tasks, and return a page of the user's."""
    import urllib.request
    from functools import partial

    import numpy as np

    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    ones = np.ones((16, 1), "float32")
    if kind == "jax":
        model.fit(ones, ones, batch_size=4, verbose=0)
    else:
        import tensorflow as tf

        rows = ctx.data_service(tf.data.Dataset.from_tensor_slices((ones, ones)).batch(4).repeat())
        fit = model.fit if kind == "multi_worker_mirrored" else partial(ctx.fit, model)
        fit(rows, steps_per_epoch=4, verbose=0)
    with urllib.request.urlopen("http://gridflow.invalid/page") as answer:
        return answer.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multi_worker_mirrored", "parameter_server", "jax"])
@pytest.mark.usefixtures("no_leaks")
def test_a_proxy_is_for_the_users_own_requests(kind, proxy, monkeypatch):
    if kind == "jax":
        skip_without("jax")
    address = f"http://127.0.0.1:{proxy.server_port}"
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, address)
    monkeypatch.setenv("no_proxy", "*.example")
    options = {"backend": "jax"} if kind == "jax" else {"strategy": kind}
    roles = [] if kind == "jax" else [Role("data")]
    roles += [Role("ps")] if kind == "parameter_server" else []
    distributor = TensorflowDistributor(
        roles=[Role("worker", 2), *roles],
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        **options,
    )
    values = distributor.run(own_page, kind).values
    pages = 1 if kind == "parameter_server" else 2  # there the chief runs the function
    assert list(values)[:pages] == ["by proxy"] * pages
    assert proxy.asked == ["http://gridflow.invalid/page"] * pages

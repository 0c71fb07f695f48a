"""Where the coordinator listens, and how its agents find it."""

from __future__ import annotations

import socket

import pytest

from gridflow import LocalLauncher, NetworkError, TensorflowDistributor, errors
from gridflow._spec.network import Network


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

"""Messages as a kubelet writes and reads them: bytes by the published field numbers (protobuf's encoding)."""

from gpuspawner.node.dra import wire


def test_a_request_of_the_kubelet_is_read() -> None:
    claim = b"\x0a\x03hub" + b"\x12\x03u-1" + b"\x1a\x01c"  # namespace 1, uid 2, name 3
    found = wire.PrepareRequest.FromString(b"\x0a" + bytes([len(claim)]) + claim)
    assert [(each.namespace, each.uid, each.name) for each in found.claims] == [("hub", "u-1", "c")]


def test_a_device_is_written_by_its_numbers() -> None:
    device = wire.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    assert not wire.Device(pool_name="p").HasField("share_id")


def test_answers_are_maps_by_uid() -> None:
    answer = wire.PrepareResponse(claims={"u": wire.PrepareOne(error="e")})
    assert answer.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e"
    empty = wire.UnprepareResponse(claims={"u": wire.UnprepareOne()})
    assert set(wire.UnprepareResponse.FromString(empty.SerializeToString()).claims) == {"u"}


def test_the_plugin_introduces_itself() -> None:
    info = wire.PluginInfo(type="T", name="n", endpoint="e", supported_versions=["v1", "v2"])
    assert info.SerializeToString() == b"\x0a\x01T\x12\x01n\x1a\x01e\x22\x02v1\x22\x02v2"
    assert wire.RegistrationStatus.FromString(b"\x08\x01\x12\x00").plugin_registered is True

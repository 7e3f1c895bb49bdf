"""The messages between kubelet and plugin, as Kubernetes publishes them in its module k8s.io/kubelet:
pkg/apis/dra/v1 and pkg/apis/pluginregistration/v1. Described here by field and number, so that no code is generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DRA_VERSION = "v1.DRAPlugin"
DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
REGISTRATION_SERVICE = "pluginregistration.Registration"
PLUGIN_TYPE = "DRAPlugin"

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {"string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL}

# Message -> its fields in the order of their numbers, which begin at 1: name and kind. A star: repeated; a question
# mark: optional; "map:X": a map from text to X.
_DRA = {
    "Claim": (("namespace", "string"), ("uid", "string"), ("name", "string")),
    "Device": (
        ("request_names", "string*"),
        ("pool_name", "string"),
        ("device_name", "string"),
        ("cdi_device_ids", "string*"),
        ("share_id", "string?"),
    ),
    "NodePrepareResourcesRequest": (("claims", "Claim*"),),
    "NodePrepareResourceResponse": (("devices", "Device*"), ("error", "string")),
    "NodePrepareResourcesResponse": (("claims", "map:NodePrepareResourceResponse"),),
    "NodeUnprepareResourcesRequest": (("claims", "Claim*"),),
    "NodeUnprepareResourceResponse": (("error", "string"),),
    "NodeUnprepareResourcesResponse": (("claims", "map:NodeUnprepareResourceResponse"),),
}
_REGISTRATION = {
    "InfoRequest": (),
    "PluginInfo": (("type", "string"), ("name", "string"), ("endpoint", "string"), ("supported_versions", "string*")),
    "RegistrationStatus": (("plugin_registered", "bool"), ("error", "string")),
    "RegistrationStatusResponse": (),
}


def _messages(package: str, described: Mapping[str, Iterable[tuple[str, str]]]) -> dict[str, Any]:
    """Message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in described.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, start=1):
            _add_field(message, f".{package}", field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in described
    }


def _add_field(message: Any, package: str, name: str, number: int, kind: str) -> None:
    added = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("map:"):
        entry_name = f"{name.title()}Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        _add_field(entry, package, "key", 1, "string")
        _add_field(entry, package, "value", 2, kind.removeprefix("map:"))
        added.label, added.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        added.type_name = f"{package}.{message.name}.{entry_name}"
        return
    if kind.endswith("*"):
        added.label = _Field.LABEL_REPEATED
    elif kind.endswith("?"):
        added.proto3_optional = True
        added.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    word = kind.rstrip("*?")
    added.type = _KINDS.get(word, _Field.TYPE_MESSAGE)
    if word not in _KINDS:
        added.type_name = f"{package}.{word}"


_dra = _messages("k8s.io.kubelet.pkg.apis.dra.v1", _DRA)
_registration = _messages("pluginregistration", _REGISTRATION)

Device = _dra["Device"]
Claim = _dra["Claim"]
PrepareRequest = _dra["NodePrepareResourcesRequest"]
PrepareResponse = _dra["NodePrepareResourcesResponse"]
PrepareOne = _dra["NodePrepareResourceResponse"]
UnprepareRequest = _dra["NodeUnprepareResourcesRequest"]
UnprepareResponse = _dra["NodeUnprepareResourcesResponse"]
UnprepareOne = _dra["NodeUnprepareResourceResponse"]
InfoRequest = _registration["InfoRequest"]
PluginInfo = _registration["PluginInfo"]
RegistrationStatus = _registration["RegistrationStatus"]
RegistrationStatusResponse = _registration["RegistrationStatusResponse"]

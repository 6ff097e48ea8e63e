from __future__ import annotations

import json
import subprocess
import sys
import types

import numpy as np
import pytest
import safetensors.torch
import torch

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators.saving import persistence
from gigagp.estimators.saving.persistence import load, load_notes, load_state, save, save_state
from gigagp.storage import tensor_file
from gigagp.storage.tensor_file import VERSION

TENSORS = {
    "lengthscale": torch.tensor([1.0, 2.0], dtype=torch.float64),
    "scalar": torch.tensor(0.1),
    "empty": torch.zeros(0, 3),
    "view": torch.arange(12.0).reshape(3, 4).T,
    "places": torch.tensor([3, 1]),
    "mask": torch.tensor([True, False]),
}
HEADER = {"kernel": {"name": "Matern", "nu": 1.5}, "seconds": [0.5, None], "objective": float("inf")}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.gp"
    save_state(path, "GPRegressor", TENSORS, HEADER)
    return path


def test_round_trip_is_exact(saved):
    kind, tensors, header = load_state(saved)
    assert kind == "GPRegressor"
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_two_views_of_one_tensor_can_be_saved(tmp_path):
    base = torch.arange(4.0, requires_grad=True)
    save_state(tmp_path / "m", "X", {"a": base[:2], "b": base[1:]}, {})
    assert torch.equal(load_state(tmp_path / "m")[1]["b"], torch.arange(1.0, 4.0))


def test_loaded_tensors_outlive_the_file(saved):
    tensors = load_state(saved)[1]
    saved.write_bytes(b"")
    assert torch.equal(tensors["view"], TENSORS["view"])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: max(int(share * len(content)), int(share > 0))])
    with pytest.raises(ModelFileError, match="empty" if share == 0.0 else r"damaged|cut off"):
        load_state(saved)


def test_any_changed_byte_is_refused(saved):
    content = saved.read_bytes()
    for place in np.random.default_rng(0).choice(len(content), size=200, replace=False):
        changed = bytearray(content)
        changed[place] ^= 0x15
        saved.write_bytes(bytes(changed))
        try:
            state = load_state(saved)
        except ModelFileError:
            continue
        # Padding, or the version of gigagp, which is only shown: what is read must be the same.
        assert state[0] == "GPRegressor"
        assert state[2] == HEADER
        assert all(torch.equal(state[1][name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("content", [b"\x80\x04\x95", b"PK\x03\x04", b"a,b\n1,2\n" * 10, bytes(100), b"\xff" * 100])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "model.gp"
    path.write_bytes(content)
    for read in (load, load_state, load_notes):
        with pytest.raises(ModelFileError, match="damaged, cut off, or not a gigagp model"):
            read(path)


def test_a_pickle_is_never_run(tmp_path):
    class Mischief:
        def __reduce__(self):
            return (sys.exit, ("code ran",))

    torch.save(Mischief(), tmp_path / "model.gp")
    with pytest.raises(ModelFileError):
        load(tmp_path / "model.gp")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(ModelFileError, match="does not exist"):
        load(tmp_path / "absent.gp")
    with pytest.raises(ModelFileError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be written"):
        save_state(tmp_path / "absent" / "model.gp", "X", {}, {})
    with pytest.raises(ModelFileError, match="cannot be written"):
        save_state(tmp_path, "X", {}, {})


def test_files_of_other_programs_and_newer_layouts(tmp_path, saved):
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, other)
    with pytest.raises(ModelFileError, match="gigagp did not write it"):
        load(other)
    with safetensors.safe_open(saved, "pt") as file:
        metadata = file.metadata()
    for version in (str(VERSION + 1), "x", ""):
        safetensors.torch.save_file({"a": torch.zeros(2)}, other, {**metadata, "version": version})
        with pytest.raises(ModelFileError, match="Update gigagp"):
            load(other)
    for header in ("{", "[]"):
        safetensors.torch.save_file({"a": torch.zeros(2)}, other, {**metadata, "header": header})
        with pytest.raises(ModelFileError, match="its header"):
            load(other)
    safetensors.torch.save_file({"a": torch.zeros(2)}, other, metadata)  # correct header, other tensors
    with pytest.raises(ModelFileError, match="checksum"):
        load(other)


def test_kinds_are_looked_up_in_a_table_only(tmp_path):
    save_state(tmp_path / "m", "os.system", {}, {})
    with pytest.raises(ModelFileError, match=r"holds a 'os.system'; this version of gigagp .* reads"):
        load(tmp_path / "m")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_keeps_the_old_file(saved, monkeypatch, error):
    before = saved.read_bytes()

    def half(file, tensors, metadata):
        file.write(before[:50])
        raise error

    monkeypatch.setattr(tensor_file, "_write_tensors", half)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ModelFileError
    with pytest.raises(expected):
        save_state(saved, "GPRegressor", TENSORS, {})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_header_has_to_be_json(tmp_path):
    with pytest.raises(InvalidInputError, match="only data that JSON can represent"):
        save_state(tmp_path / "m", "X", {}, {"a": object()})
    assert not (tmp_path / "m").exists()


class Toy:
    """A minimal estimator that can be saved."""

    def __init__(self, weight):
        self.weight = weight

    def _to_state(self):
        return {"weight": self.weight}, {"units": "m"}

    @classmethod
    def _from_state(cls, tensors, header, custom):
        json.dumps(header)
        return cls(tensors["weight"])


@pytest.fixture
def toy_kind(monkeypatch):
    module = types.ModuleType("toy_module")
    module.Toy = Toy
    monkeypatch.setattr(Toy, "__module__", "toy_module")
    monkeypatch.setitem(sys.modules, "toy_module", module)
    monkeypatch.setitem(persistence._KINDS, "Toy", "toy_module")


@pytest.mark.usefixtures("toy_kind")
def test_an_estimator_and_its_notes_come_back(tmp_path):
    save(Toy(torch.tensor([1.5])), tmp_path / "m", notes={"target": "y"})
    assert torch.equal(load(tmp_path / "m").weight, torch.tensor([1.5]))
    assert load_notes(tmp_path / "m") == {"target": "y"}
    save(Toy(torch.tensor([1.5])), tmp_path / "m")
    assert load_notes(tmp_path / "m") == {}


@pytest.mark.usefixtures("toy_kind")
def test_an_incomplete_state_is_a_clear_error(tmp_path):
    save_state(tmp_path / "m", "Toy", {}, {})
    with pytest.raises(ModelFileError, match="not a complete Toy"):
        load(tmp_path / "m")


REPLACING = """
import os, sys
path, other = sys.argv[1:]
contents = [open(name, "rb").read() for name in (path, other)]
print("ready", flush=True)
for number in range(10**9):
    with open(path + ".new", "wb") as file:
        file.write(contents[number % 2])
    os.replace(path + ".new", path)
"""


@pytest.mark.slow
def test_a_file_that_is_replaced_again_and_again_is_never_half_of_two(tmp_path):
    """Every read is of one file: its header and its tensors come from the same save."""
    path, other = tmp_path / "one.gp", tmp_path / "other.gp"
    for number, name in ((1, path), (2, other)):
        tensors = {f"number {number}": torch.full((50,), float(number)), "rest": torch.zeros(number, 50)}
        save_state(name, "X", tensors, {"number": number, "notes": {"number": number}})
    writer = subprocess.Popen([sys.executable, "-c", REPLACING, str(path), str(other)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    try:
        seen = []
        for _ in range(1500):
            _, tensors, header = load_state(path)
            number = header["number"]
            assert tensors[f"number {number}"].tolist() == [number] * 50
            assert load_notes(path)["number"] in (1, 2)
            seen.append(number)
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert set(seen) == {1, 2}  # the file did change


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": "9" * 5000}, "Update gigagp"),
        ({"version": "²"}, "Update gigagp"),
        ({"header": "[" * 2000 + "]" * 2000}, "header (cannot be read|is not a table)"),  # Python 3.13 can read it
        ({"header": '{"a": ' * 100_000 + "1" + "}" * 100_000}, "header cannot be read"),
        ({"header": '{"a": ' + "9" * 5000 + "}"}, "header cannot be read"),
        ({"kind": "x" * 10_000}, "holds a 'xxx"),
    ],
)
def test_hostile_metadata_are_one_short_error(tmp_path, saved, changes, match):
    with safetensors.safe_open(saved, "pt") as file:
        metadata = {**file.metadata(), **changes}
    tensors = {"a": torch.zeros(2)}
    metadata["checksum"] = tensor_file._checksum(metadata["kind"], metadata["header"], tensors)
    safetensors.torch.save_file(tensors, tmp_path / "hostile", metadata)
    with pytest.raises(ModelFileError, match=match) as error:
        load(tmp_path / "hostile")
    assert len(str(error.value)) < 1000

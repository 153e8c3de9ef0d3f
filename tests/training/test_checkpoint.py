"""A checkpoint that is damaged or wrong is refused and left as it was; one that is accepted holds what was written."""

import json
import math
import time

import pytest
import torch
from small import CONFIG, job

from equivariant_transformers.training import CHECKPOINT, Stopped, checkpoint, is_finished, train
from equivariant_transformers.training.checkpoint import CheckpointError

TENSORS = {
    "weights": torch.linspace(-1, 1, 12).reshape(3, 4),
    "brain": torch.linspace(-1, 1, 5, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "count": torch.tensor([1, 2, 3]),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
}
DESCRIPTION = {"name": "déjà vu", "epoch": 3, "history": [{"loss": 0.25}]}


def same(first, second):
    (tensors, description), (others, other) = first, second
    return (
        description == other
        and tensors.keys() == others.keys()
        and all(torch.equal(t, others[name]) and t.dtype == others[name].dtype for name, t in tensors.items())
    )


@pytest.fixture
def file(tmp_path):
    checkpoint.write(tmp_path / "file", TENSORS, DESCRIPTION)
    return tmp_path / "file"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The checkpoints of a finished run, one stopped in the middle of an epoch, and one that diverged."""
    folder = tmp_path_factory.mktemp("runs")
    train([job(CONFIG, folder / "finished")])
    train([job(CONFIG.replace(learning_rate=100.0), folder / "diverged")])
    with pytest.raises(Stopped):
        train([job(CONFIG, folder / "middle")], deadline=time.monotonic())
    return {name: (folder / name / CHECKPOINT).read_bytes() for name in ("finished", "middle", "diverged")}


def test_tensors_of_every_type_come_back(file):
    assert same(checkpoint.read(file), (TENSORS, DESCRIPTION))


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors["weights"][1, 2].add_(1e-6),
        lambda tensors: tensors["brain"].view(torch.int16)[3].add_(1),
        lambda tensors: tensors.update(other=tensors.pop("count")),
        lambda tensors: tensors.update(count=tensors["count"].double()),
        lambda tensors: tensors.update(weights=tensors["weights"].reshape(4, 3)),
        lambda tensors: tensors.pop("none"),
    ],
)
def test_content_that_differs_from_its_checksum_is_refused(file, change):
    """Written by another program, which keeps the header."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(file, framework="pt") as opened:
        header = opened.metadata()
    tensors = load_file(file)
    save_file(tensors, file, header)
    assert same(checkpoint.read(file), (TENSORS, DESCRIPTION))
    change(tensors)
    save_file(tensors, file, header)
    with pytest.raises(CheckpointError, match="is damaged: its content does not match its checksum"):
        checkpoint.read(file)


def test_a_flipped_bit_is_noticed_or_changes_nothing(file):
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    for position in (*range(0, end, 7), *range(end, len(content))):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        file.write_bytes(flipped)
        try:
            found = checkpoint.read(file)
        except CheckpointError:
            continue
        assert position < end
        assert same(found, (TENSORS, DESCRIPTION))


def test_a_file_without_a_checksum_is_read(file):
    """As version 0.1 wrote it."""
    from safetensors.torch import save_file

    save_file(TENSORS, file, {"format": checkpoint.FORMAT, "description": json.dumps(DESCRIPTION)})
    assert same(checkpoint.read(file), (TENSORS, DESCRIPTION))


@pytest.mark.parametrize("text", [None, "", "{", "no JSON", "[1, 2]", "null", "3", '"card"', "[" * 100_000])
def test_a_description_that_is_no_object_is_refused(file, text):
    from safetensors.torch import save_file

    save_file(TENSORS, file, {"format": checkpoint.FORMAT} | ({} if text is None else {"description": text}))
    with pytest.raises(CheckpointError, match="is damaged: its description is "):
        checkpoint.read(file)


def change_history(**changes):
    def change(tensors, description):
        description["history"][1].update(changes)

    return change


def change_tensor(name, function):
    def change(tensors, description):
        tensors[name] = function(tensors[name])

    return change


WRONG = {
    "epoch -1": {"epoch": -1},
    "epoch beyond the end": {"epoch": 99},
    "an epoch too few": {"epoch": 3},
    "epoch of text": {"epoch": "4"},
    "epoch true": {"epoch": True},
    "epoch null": {"epoch": None},
    "step beyond the epoch": {"step": 99},
    "step after the end": {"step": 3},
    "step -1": {"step": -1},
    "a fraction of a step": {"step": 0.5},
    "history empty": {"history": []},
    "history an object": {"history": {}},
    "history null": {"history": None},
    "history of numbers": {"history": [1.0, 2.0, 3.0, 4.0]},
    "best_epoch beyond history": {"best_epoch": 9},
    "best_epoch 0": {"best_epoch": 0},
    "best_epoch missing": {"best_epoch": None},
    "another best_epoch": lambda _, description: description.update(best_epoch=5 - description["best_epoch"]),
    "validation_error missing": {"validation_error": None},
    "validation_error NaN": {"validation_error": math.nan},
    "validation_error of another epoch": {"validation_error": 99.5},
    "failure an object": {"failure": {}},
    "failure without a reason": {"failure": "exploded"},
    "config null": {"config": None},
    "config a list": {"config": []},
    "epochs of text": {"config": CONFIG.to_dict() | {"epochs": "many"}},
    "loss of text": change_history(loss="small"),
    "loss NaN": change_history(loss=math.nan),
    "error beyond 100": change_history(validation_error=300.0),
    "seconds null": change_history(seconds=None),
    "history too long": lambda _, description: description["history"].append(description["history"][0]),
    "weight missing": lambda tensors, _: tensors.pop("model/0.weight"),
    "best weight missing": lambda tensors, _: tensors.pop("best/0.weight"),
    "moment missing": lambda tensors, _: tensors.pop("optimizer/0.weight/exp_avg"),
    "loss missing": lambda tensors, _: tensors.pop("total_loss"),
    "random state missing": lambda tensors, _: tensors.pop("random/cpu"),
    "a tensor too many": lambda tensors, _: tensors.update(more=torch.zeros(2)),
    "averages of a run without": lambda tensors, _: tensors.update({"average/0.bias": torch.zeros(6)}),
    "another shape": change_tensor("optimizer/0.weight/exp_avg", lambda tensor: tensor[:2]),
    "another shape of the best": change_tensor("best/0.weight", lambda tensor: tensor[:1]),
    "another type": change_tensor("model/0.weight", lambda tensor: tensor.double()),
    "counter of another type": change_tensor("model/1.num_batches_tracked", lambda tensor: tensor.float()),
    "NaN weights": change_tensor("model/0.weight", lambda tensor: tensor * math.nan),
    "NaN in the best weights": change_tensor("best/0.weight", lambda tensor: tensor * math.nan),
    "NaN moments": change_tensor("optimizer/0.weight/exp_avg", lambda tensor: tensor * math.nan),
    "NaN squares": change_tensor("optimizer/5.bias/max_exp_avg_sq", lambda tensor: tensor * math.nan),
    "NaN steps": change_tensor("optimizer/0.weight/step", lambda tensor: tensor * math.nan),
    "infinite steps": change_tensor("optimizer/0.weight/step", lambda tensor: tensor * math.inf),
    "more steps": change_tensor("optimizer/0.weight/step", lambda tensor: tensor + 1),
    "short random state": change_tensor("random/cpu", lambda tensor: tensor[:100]),
    "broken random state": change_tensor("random/cpu", lambda tensor: torch.full_like(tensor, 255)),
}  # fmt: skip
WRONG |= {
    f"{name} missing altogether": name for name in ("config", "epoch", "step", "history", "best_epoch", "failure")
}


def spoil(path, content, change):
    """Write the checkpoint `content` to `path` with a change and a valid checksum."""
    path.write_bytes(content)
    tensors, description = checkpoint.read(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    if callable(change):
        change(tensors, description)
    elif isinstance(change, str):
        del description[change]
    else:
        description |= change
    checkpoint.write(path, tensors, description)


@pytest.mark.parametrize("case", WRONG)
def test_a_state_that_no_run_can_be_in_is_refused_and_left_alone(runs, tmp_path, case):
    path = tmp_path / CHECKPOINT
    spoil(path, runs["finished"], WRONG[case])
    before = path.read_bytes()
    assert not is_finished(path, job())
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors .*") as refused:
        train([job(directory=tmp_path)])
    assert "Remove this file to restart the run" in str(refused.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("changes", [{"batch_size": 64}, {"seed": 3}, {"size": 32, "batch_size": 100}])
def test_the_state_of_another_run_is_not_called_damaged(runs, tmp_path, changes):
    (tmp_path / CHECKPOINT).write_bytes(runs["middle"])  # its step may be one that this run does not have
    with pytest.raises(CheckpointError, match=f"belongs to another run: .*{min(changes)} is") as refused:
        train([job(CONFIG.replace(**changes), directory=tmp_path)])
    assert "emove" not in str(refused.value)  # the file is the other run's work


def test_another_place_in_the_epoch_is_refused(runs, tmp_path):
    for step in (0, 2, 6):
        spoil(tmp_path / CHECKPOINT, runs["middle"], {"step": step})
        with pytest.raises(CheckpointError, match="the optimizer counts"):
            train([job(directory=tmp_path)])


def test_every_state_that_a_run_leaves_is_accepted(runs, tmp_path):
    for name, config in (("finished", CONFIG), ("middle", CONFIG), ("diverged", CONFIG.replace(learning_rate=100.0))):
        path = tmp_path / name / CHECKPOINT
        path.parent.mkdir()
        path.write_bytes(runs[name])
        assert is_finished(path, job(config)) == (name == "finished")
        (result,) = train([job(config, path.parent)])
        assert (result.failure is None) == (name != "diverged")


def test_weights_that_break_in_the_middle_of_an_epoch_are_no_damage(runs, tmp_path):
    """The run was stopped before the end of the epoch, when it would have failed."""

    def explode(tensors, _):
        for name, tensor in tensors.items():
            if name.startswith(("model/0", "optimizer/0")) and not name.endswith("step"):
                tensor.fill_(math.nan)

    spoil(tmp_path / CHECKPOINT, runs["middle"], explode)
    (result,) = train([job(directory=tmp_path)])
    assert "not finite" in result.failure


def test_a_flipped_bit_in_a_run_is_refused_and_left_alone(runs, tmp_path):
    path = tmp_path / CHECKPOINT
    content = runs["middle"]
    for share in (0.3, 0.6, 0.9):
        flipped = bytearray(content)
        flipped[int(share * len(content))] ^= 0x40
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="Remove this file to restart the run"):
            train([job(directory=tmp_path)])
        assert not is_finished(path, job())
        assert path.read_bytes() == flipped

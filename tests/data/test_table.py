"""CSV tables of images: read like folders, or refused with the line of the mistake."""

import json
import os
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from photos import CLASSES, picture, write_folder, write_table

from equivariant_transformers.cli import main
from equivariant_transformers.data import from_csv, from_folder
from equivariant_transformers.data.table import _rows, find_images, read_table


def table(tmp_path, text, files=("a.png", "b.png", "c.png")):
    for index, name in enumerate(files):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(index).save(file, format="PNG")
    path = tmp_path / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("memory", [2, 0])
def test_a_table_is_read_like_the_folder(tmp_path, memory):
    path = write_table(tmp_path, 60)
    listed, found = from_csv(path, memory=memory), from_folder(tmp_path / "pictures")
    for one, other in zip(listed, found, strict=True):
        assert one.classes == other.classes == CLASSES
        assert torch.equal(one.images[:], other.images)
        assert torch.equal(one.labels, other.labels)
        assert (one.mean, one.std, one.origin) == (other.mean, other.std, other.origin)
    assert listed.train.name == "labels"


def test_splits_are_taken_as_found(tmp_path):
    path = write_table(tmp_path, 60, splits=["train", "train", "val", "test"])
    assert [len(part) for part in from_csv(path)] == [30, 15, 15]
    path = write_table(tmp_path, 60, splits=["train", "train", "train", "test"])
    assert [len(part) for part in from_csv(path)] == [41, 4, 15]  # a tenth of the training images is held out


@pytest.mark.parametrize("count", [1, 6])
def test_few_images(tmp_path, count):
    path = write_table(tmp_path, count)
    splits = from_csv(path, validation=0, test=0, size=(8, 12), channels=1)
    assert splits.train.images.shape == (count, 1, 8, 12)
    if count == 1:
        with pytest.raises(ValueError, match="1 images are too few to hold out"):
            from_csv(path)
    else:
        assert [len(part) for part in from_csv(path)] == [4, 1, 1]


def test_marks_quotes_and_scripts_of_all_kinds(tmp_path):
    names = ("a, b.png", "sun set/Ärger 猫.png", 'say "hi".png')
    if os.name == "nt":
        names = names[:2]
    rows = ['"a, b.png", Katze ', '"sun set/Ärger 猫.png",犬', '"say ""hi"".png","Katze"'][: len(names)]
    text = "\ufeffpath,label\r\n\r\n" + "\r\n".join(rows) + "\r\n,\r\n"
    splits = from_csv(table(tmp_path, text, names), validation=0, test=0)
    assert splits.train.classes == ("Katze", "犬")
    assert splits.train.labels.tolist() == [0, 1, 0][: len(names)]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_separator_is_that_of_the_first_line(tmp_path, mark, end):
    rows = [("path", "label"), ("a.png", "cat, large"), ("b; c.png", "dog; small")]
    text = end.join(mark.join(f'"{cell}"' if set(",;") & {*cell} else cell for cell in row) for row in rows)
    tree = read_table(table(tmp_path, text, ("a.png", "b; c.png")))
    assert tree.classes == ("cat, large", "dog; small")
    assert [(file.name, label) for file, label in tree.parts["train"]] == [("a.png", 0), ("b; c.png", 1)]


def test_columns_may_come_in_any_order_and_labels_may_be_left_out(tmp_path):
    path = table(tmp_path, "split,label,path\ntrain,x,a.png\ntest,y,b.png\ntrain,y,c.png")
    assert {part: len(files) for part, files in read_table(path).parts.items()} == {"train": 2, "test": 1}
    path.write_text("path\na.png\nb.png")
    splits = from_csv(path, labels=False, validation=0, test=0)
    assert splits.train.classes == ("image",)
    assert len(splits.train) == 2


@pytest.mark.parametrize("memory", [2, 0])
def test_columns_of_numbers_are_targets(tmp_path, memory):
    path = table(tmp_path, "path,width,split,depth of field\na.png,1.5,train,-2\nb.png, 3e-1 ,test,0\nc.png,7,train,1")
    splits = from_csv(path, validation=0, memory=memory)
    assert splits.train.classes == ("width", "depth of field")
    assert torch.equal(splits.train.labels, torch.tensor([[1.5, -2.0], [7.0, 1.0]]))
    assert torch.equal(splits.test.labels, torch.tensor([[0.3, 0.0]]))
    assert from_csv(path, labels=False, validation=0).train.classes == ("image",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; the first line must be path,label"),
        ("\n , \n", "is empty"),
        ("path,label\n", "lists no images for training; it has no rows"),
        ("a.png,cat\n", r"line 1: the columns must be path,label or path,label,split, or path and .*, got 'a.png,cat'"),
        ("path|label\na.png|cat", "line 1: the columns must be"),
        ("path,label,spilt\na.png,cat,test", "line 1: the columns must be"),
        ("path,path\na.png,cat", "line 1: the columns must be"),
        ("path,width,width\na.png,1,2", "line 1: the columns must be"),
        ("path,\na.png,1", "line 1: the columns must be"),
        ("path,label,width\na.png,cat,2", "line 1: the columns must be"),
        ("path,width\na.png,wide", "line 2: 'width' must be a finite number, got 'wide'"),
        ("path,width\na.png,nan", "line 2: 'width' must be a finite number, got 'nan'"),
        ("path,label\na.png\n", r"line 2: 2 cells \(path, label\) are needed, found 1"),
        ("path,label\na.png,cat,dog\n", "line 2: 2 cells .* found 3; quote a cell with a separator"),
        ("path,label\na.png,\n", "line 2: the label is empty"),
        ("path,label\n,cat\n", "line 2: a path must be below the folder of the table, and relative to it, got ''"),
        ("path,label\n\nsub/../../a.png,cat\n", r"line 3: a path must be below .* got 'sub/../../a.png'"),
        ("path,label\n/etc/passwd,cat\n", "line 2: a path must be below"),
        ("path,label\na.png,cat\n./a.png,dog\n", "line 3: './a.png' is in line 2 too"),
        (
            "path,label\na.png,cat\nx.png,cat\ny.png,dog",
            r"do not exist \(line 3: x.png; line 4: y.png\); paths are rel",
        ),
        ("path,label\n" + "".join(f"{n}.png,cat\n" for n in range(9)), r"line 6: 4.png and 4 more\)"),
        ("path,label,split\na.png,cat,train\nb.png,cat,trian\n", "line 3: the split must be one of train, .*'trian'"),
        ("path,label\n" + "x" * 5000 + ",cat", "do not exist"),
        ("path,label,split\na.png,cat,\n", "line 2: the split must be one of .* got ''"),
        ("path,label,split\na.png,cat,test\n", "lists no images for training$"),
        ('path,label\n"a.png,cat\n', "line 2: unexpected end of data"),
        ('path,label\na.png,"cat" s\n', "line 2: .* expected after"),
        (b"path,label\na.png,cat\nb.png,K\xe4tzchen\n", "line 3: it is not UTF-8"),
        ("path,label\na.png," + "x" * 200_000, "line 2: field larger than"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        from_csv(table(tmp_path, text), validation=0, test=0)


def test_a_table_is_bounded(tmp_path):
    path = tmp_path / "labels.csv"
    with path.open("wb") as file:
        file.truncate(2**28 + 1)  # sparse: takes no space
    with pytest.raises(ValueError, match="268,435,457 bytes; a table has at most 268,435,456"):
        from_csv(path)
    path.write_text("path,label\n" + "".join(f"{index}.png,{index}\n" for index in range(100_001)))
    with pytest.raises(ValueError, match="lists files that do not exist"):
        from_csv(path)


def test_unreadable_pictures_are_skipped_with_a_warning(tmp_path):
    path = table(tmp_path, "path,label\na.png,cat\nb.png,cat\nc.png,dog\n")
    (tmp_path / "b.png").write_text("no picture")
    with pytest.warns(UserWarning, match=r"skipped 1 files that are not readable images: b.png \(not an image\)"):
        assert len(from_csv(path, validation=0, test=0).train) == 2
    (tmp_path / "c.png").write_text("no picture")
    with (
        pytest.warns(UserWarning, match="skipped 2 files"),
        pytest.raises(ValueError, match=r"no readable image of class dog in .*labels\.csv"),
    ):
        from_csv(path, validation=0, test=0)


@given(text=st.text(max_size=80))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "labels.csv"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_table(path)


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9)), min_size=1, max_size=9
    ).filter(lambda rows: all(cell.strip() == cell and "\0" not in cell for row in rows for cell in row))
)
def test_what_a_csv_writer_writes_is_read_back(tmp_path_factory, rows):
    import csv

    path = tmp_path_factory.mktemp("text") / "labels.csv"
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("path", "label"), *rows])
    except UnicodeEncodeError:
        return
    assert [(row["path"], row["label"]) for _, row in _rows(path, labels=True)] == rows


def test_folders_and_tables_are_told_apart(tmp_path):
    folder = write_folder(tmp_path / "pets.csv", 6)
    assert find_images(folder).classes == CLASSES
    with pytest.raises(ValueError, match="is not a folder"):
        find_images(tmp_path / "missing.csv")


def test_every_command_reads_a_table(tmp_path, capsys):
    path, out = write_table(tmp_path, 24), tmp_path / "run"
    assert main(["train", str(path), "--layers", "rotation", "--epochs", "1", "--out", str(out), "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    model = str(out / "model.safetensors")
    assert main(["evaluate", model, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["test_error"] == pytest.approx(trained["test_error"])
    assert (evaluated["classes"], evaluated["dataset"]) == (list(CLASSES), "labels")
    assert main(["evaluate", model, "--dataset", str(tmp_path / "pictures"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confusion"] == evaluated["confusion"]
    assert main(["audit", model, "--dataset", str(path), "--count", "2", "--json"]) == 0
    capsys.readouterr()
    assert main(["predict", model, str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["image"] for entry in found] == [str(file) for file, _ in read_table(path).parts["train"]]
    (tmp_path / "only.csv").write_text("path\npictures/circle/000.png\nmissing.png\n")
    assert main(["predict", model, str(tmp_path / "only.csv"), "--json"]) == 1
    assert [*map(sorted, json.loads(capsys.readouterr().out))][1] == ["error", "image"]
    assert main(["align", str(tmp_path / "only.csv"), "--epochs", "1"]) == 1
    assert "line 3: missing.png" in capsys.readouterr().err
    (tmp_path / "only.csv").write_text("file\n")
    assert main(["predict", model, str(tmp_path / "only.csv")]) == 1
    assert "line 1: the columns must be" in capsys.readouterr().err
    assert main(["align", str(path), "--epochs", "1", "--size", "32", "--out", str(out / "aligned")]) == 0


@pytest.mark.parametrize("name", ["missing.csv", "folder/missing.csv"])
def test_a_missing_table_is_wrong_usage(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main(["train", name]) == 2
    assert f"there is no folder or CSV file {name}" in capsys.readouterr().err

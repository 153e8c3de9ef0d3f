"""MATLAB files, against two that SciPy wrote, and damaged ones."""

import base64
import zlib

import numpy as np
import pytest

from equivariant_transformers.data.matfile import read_mat

# savemat of a structure with numbers, text, a structure and an empty array in it; arrays of one to four dimensions;
# a complex number; cells; and an array of structures. With compression and without.
COMPRESSED = (
    "c-r%I4DoSvQZUssQ1EpO(M`+DNmU5QNi0drFUqx2D9A6)tk6+#E=o--Nlj76&$ChpF3nT$%P&(fG*vJ(vNE=?GBr{#GB7e@AOkRZ`tk#*gFsv{"
    "=W%jE!jA(d4jf=xV%adGlaVQ6VU3&08QvqEnVEI-4k~JPs&)pH>hQz_R4OZ+JLBu)&wBcairUg=N7A27HF%=>%&A4f=<}zb?gMMC+-aKR#m4f0"
    "If<RE#oFTHor6qA&ID9TEO_^X(J)7ATL;URITt)43)s{880Cs349_H{C8VVsyl}k9Ri1m29izf}m92|dmaK1T-0`8gRa|-s|Dx{6!o@)wcg&vK"
    "VEHEDy37Xm>&M%c@v|lTN_fb~z_Ln?6XX#mxJNh`lFSsIF(mo1aU`%NF)E}nC8cTb9_n$BU`+LH5c#x$qoBj!<3`THPQy=|xQe=rK5ynO?q+82"
    "Si&R&GD#P1QUTbchD!<uxSkp_8Y)W|8-*}s`YDJdG&J&m6Noy>$Y2r6Gz+9j8?NaC#QKX0OdOz4v`9-?!E|X(Kq1GEg#J_M1q=*+icI~eE{<S4"
    "lH+iO@kkGkz=5tK=}nguHa@vBXHJsBS@t7h9>0EUc#-U4)X#plW<nLS%3mFpFWd}~oeokA4+B^{KqiI5O)^MGNl0M6B;#=A2m|Aq06XQ79zm^X"
    "(<aY|<4N1>a5PeaOM*-Chr=@ig)<KiCh_qYJA7@vp->C7<Oau!$1PpX4BgC@-;9ED)=yw&n5M*f4FGJq=BW"
)
PLAIN = (
    "c-o~?%TB^T6ur}y@)QyAv7Chq7iypeLx>5W8%czaz`~swVM?0xflv+j4Ss}6Kfn)g=|}hxe1dHma41CxHo3X;I_I7_b6cylZYx(ff0o6yO6yeB"
    "bc!1~u~n;Y6micQXu}hH-KWH+9c-CJ+<Y=|-Fn8kJkBY_^FlGNU?r<uzy=?x){;&dBLLaS5hnz;6=HM5McfIZs`YBK)gd-v=Ol=+eZ>jQAYJP1"
    "=;VRw_nK*gNsP%7Xr@W~-iR7Kd&Eg`b(G;(N7Sc7azbQvfay%QgUjJZrt$i9+<E(+@?`(uK?^)0h)7z%NdY*C!=;>=O^3FN8^U`2P5qMD+|7eF"
    "(P@D0@Cu%=r{=Td$H_k2?5SCfa(*|K_>^Mz5Lp&HJc2tmK6DQzq*Np$B;|B$A8mzpqI=?YcsG9Fe@DL_VRjD$BUU#xQ#me8@=@94x#4*t%lts_"
    "!gwMa&-@%bzITof1^7GF=B~A=t`C?`1rC>7@h%A;|2lnz=K2Z&nc`Obm%Lt8C*1+-ugSUuJ$PKGpID<mQNX?B6}Wl7rSc|q#edgLmwy1qAVoj"
)


@pytest.fixture(params=[COMPRESSED, PLAIN], ids=["compressed", "plain"])
def path(request, tmp_path):
    path = tmp_path / "file.mat"
    path.write_bytes(zlib.decompress(base64.b85decode(request.param)))
    return path


def test_every_numeric_array_is_read(path):
    arrays = read_mat(path)
    expected = {
        "affNISTdata.image": (20 * np.arange(12, dtype="u1")).reshape(4, 3),
        "affNISTdata.label_int": np.array([[3, 1, 4]], "u1"),
        "affNISTdata.inner.scale": np.array([[1.5]], "f4"),
        "affNISTdata.empty": np.zeros((0, 0)),
        "X": np.arange(24, dtype="u1").reshape(2, 3, 2, 2),
        "y": np.array([[1.0], [10.0]]),
        "z": np.array([[1 + 2j]]),
        "flags[0].p": np.array([[1]], "i4"),
        "flags[0].q": np.array([[2.5]]),
        "flags[1].p": np.array([[3]], "i4"),
        "flags[1].q": np.array([[4.5]]),
    }
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
        assert arrays[name].dtype == array.dtype


def test_a_cut_off_file_is_explained(path):
    content = path.read_bytes()
    for length in (129, 150, 200, len(content) - 9):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cut off or damaged"):
            read_mat(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"MATLAB 7.3 MAT-file".ljust(600), "save it again with -v7"),
        (b"<html>", "not a little-endian MATLAB file"),
        (b"MATLAB 5.0 MAT-file".ljust(126) + b"MI", "not a little-endian MATLAB file"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "file.mat").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_mat(tmp_path / "file.mat")

"""Hook of the documentation site that adds the runtime and the networks of the page `live.md`.

The page works from the built folder alone, also without a server. A browser lets a page that is opened from a disk load
scripts and nothing else, so every file is packed into a script: compressed, in base64.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
CACHE = ROOT / "out" / "live"
SOURCE = ROOT / "src" / "equivariant_transformers"
RUNTIME = {
    "ort.wasm.min.js": "runtime.js",
    "ort-wasm-simd-threaded.mjs": "runtime.mjs",
    "ort-wasm-simd-threaded.wasm": "runtime.wasm",
}
"""Files of the package onnxruntime-web, and their names here."""
NETWORKS = ("digits.onnx", "photographs.onnx")
MISSING = "The live demo is not part of this build of the site: {reason}. The log of the build has the details."
_PACK = "(globalThis.etLive ??= {{}})[{name}] = {value};\n"

log = logging.getLogger("mkdocs.hooks.live")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the scripts of the live page."""
    for name, script in scripts().items():
        files.append(File.generated(config, f"live/{name}", content=script))
    return files


def scripts() -> dict[str, str]:
    """Return the scripts by name, or a script that gives the reason why the demo cannot be built here."""
    try:
        return {"runtime.js": runtime(), "networks.js": networks()}
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        log.info(f"the live demo is left out: {error}")
        reason = str(error).partition("\n")[0].rstrip(".:")  # the rest names folders of this machine
        return {"runtime.js": packed("missing", MISSING.format(reason=reason)), "networks.js": ""}


def runtime() -> str:
    """Return the script with ONNX Runtime Web, downloaded on first use into the cache directory of the data sets."""
    from equivariant_transformers.data import cache

    release = cache.Release(
        "onnxruntime-web-1.30.0.tgz", "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71", 33_106_585
    )

    def fetch() -> dict[str, bytes]:
        advice = f"Build the site again with npm and a network connection, or put {release.file} into {home}"
        sources = {"the package registry": lambda folder: keep(cache.download_package(release, folder).read_bytes())}
        return cache.first_source("ONNX Runtime Web", sources, advice)

    def keep(archive: bytes) -> dict[str, bytes]:
        home.mkdir(parents=True, exist_ok=True)
        with cache.atomic_write(home / release.file) as file:
            file.write(archive)
        return read(home)

    def read(folder: Path) -> dict[str, bytes]:
        return cache.unpack(folder / release.file, release)

    home = cache.root() / "onnxruntime-web"
    parts = cache.read_or_fetch(home, read, fetch)
    script = parts.pop("ort.wasm.min.js").decode()
    script = script.partition("//# sourceMappingURL")[0]
    return script + "\n" + "".join(packed(RUNTIME[name], parts[name]) for name in RUNTIME if name in parts)


def networks() -> str:
    """Return the script with the networks and settings. They are exported again if the library has changed."""
    from equivariant_transformers.data.cache import lock

    digest = hashlib.sha256()
    for path in sorted(path for kind in ("py", "safetensors", "png", "jpg") for path in SOURCE.rglob(f"*.{kind}")):
        digest.update(path.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    with lock(folder):  # the tests build the site more than once, at the same time
        if not (folder / "settings.json").is_file():
            export(folder)
    content = {name: (folder / name).read_bytes() for name in NETWORKS}
    settings = json.loads((folder / "settings.json").read_text())
    return packed("settings", settings) + "".join(packed(name, data) for name, data in content.items())


def export(folder: Path) -> None:
    """Write the networks and the settings of the page into `folder`."""
    from equivariant_transformers.data.files import atomic_write
    from equivariant_transformers.demo import photographs, uploads, web

    log.info("exporting the networks of the live demo, about a minute")
    digits, upright = web.digit_networks(), photographs.uprighting()
    content = {
        "digits.onnx": web.to_onnx(digits, uploads.samples()[7:8, None]),
        "photographs.onnx": web.to_onnx(upright, photographs.samples()[:1]),
        "settings.json": json.dumps(web.settings(digits, upright)).encode(),
    }
    for name, data in content.items():
        with atomic_write(folder / name) as file:
            file.write(data)


def packed(name: str, value: bytes | str | Mapping[str, Any]) -> str:
    """Return a script that defines `etLive[name]`: bytes compressed and in base64, other values as JSON."""
    if isinstance(value, bytes):
        small = gzip.compress(value, 9, mtime=0)
        log.info(f"{name}: {len(value) / 1e6:.2f} MB, compressed {len(small) / 1e6:.2f} MB")
        value = base64.b64encode(small).decode()
    return _PACK.format(name=json.dumps(name), value=json.dumps(value))

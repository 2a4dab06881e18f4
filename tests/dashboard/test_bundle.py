"""The scripts of the first page in one response: complete, and rewritten so that they find each other."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from dashboard.bundle import bundle_of
from dashboard.server import first_page_bundle

MODULES = {
    "index.A1-_.js": b"""import{a as b}from"./react.B2.js";import"./css-in-js.C3.js";
const f=["./Slider.D4.js","./DataFrame.E5.js"];const u=import.meta.url;
const s=()=>import(`./Slider.D4.js`),d=()=>import("./DataFrame.E5.js");""",
    "react.B2.js": b"export{a};",
    "css-in-js.C3.js": b"export default 1;",
    "Slider.D4.js": b"import{t}from'./index.A1-_.js';import{m}from './moment.F6.js';",
    "moment.F6.js": b"export{m};",
    "DataFrame.E5.js": b"import{a}from'./react.B2.js';",
}


def static_folder(root, **changed):
    scripts = root / "static" / "js"
    scripts.mkdir(parents=True)
    for name, code in MODULES.items():
        (scripts / name).write_bytes(code)
    item = {
        name.partition(".")[0]: {"file": f"static/js/{name}", "name": name.partition(".")[0]}
        for name in MODULES
    }
    item["index"].update(isEntry=True, imports=["react", "css-in-js"], dynamicImports=["Slider", "DataFrame"])
    item["Slider"].update(imports=["index", "moment"], isDynamicEntry=True)
    item["DataFrame"].update(imports=["react"], isDynamicEntry=True)
    (root / "manifest.json").write_text(json.dumps({**item, **changed}))
    return root


def modules_in(bundle):
    content = bundle.content()
    assert gzip.decompress(bundle.compressed) == content
    index, _, rest = content.partition(b"\n")
    found = {}
    for path, bare, length in json.loads(index):
        found[path], rest = rest[:length], rest[length:]
        assert bare == (path.replace("/static/js/", "streamlit/") if path.startswith("/static") else "")
    assert rest == b""
    return found


def test_a_bundle_has_the_first_page_and_all_it_imports(tmp_path):
    bundle = bundle_of(static_folder(tmp_path), {"/assets/chart-1.js": b"export default 2;"})
    found = modules_in(bundle)

    assert set(found) == {
        *(f"/static/js/{name}" for name in MODULES if name != "DataFrame.E5.js"),
        "/assets/chart-1.js",
    }
    assert bundle.entry == "index.A1-_.js"
    assert found["/assets/chart-1.js"] == b"export default 2;"
    assert f'"{bundle.url}"' in bundle.starter


def test_modules_import_each_other_by_names_that_work_in_a_blob(tmp_path):
    found = modules_in(bundle_of(static_folder(tmp_path), {}))

    index = found["/static/js/index.A1-_.js"]
    assert b'from"streamlit/react.B2.js";import"streamlit/css-in-js.C3.js"' in index
    assert b"import(`streamlit/Slider.D4.js`)" in index
    # What is not in the bundle is found through the import map, too.
    assert b'import("streamlit/DataFrame.E5.js")' in index
    # These are joined with the module's URL, which is not that of its blob.
    assert b'["./Slider.D4.js","./DataFrame.E5.js"]' in index
    assert b'u=(location.origin+"/static/js/index.A1-_.js")' in index
    assert b"from'streamlit/index.A1-_.js'" in found["/static/js/Slider.D4.js"]


def test_its_address_changes_with_its_content(tmp_path):
    static = static_folder(tmp_path)
    urls = {
        bundle_of(static, ours).url
        for ours in ({}, {"/assets/chart-1.js": b"1"}, {"/assets/chart-2.js": b"2"})
    }

    assert len(urls) == 3


@pytest.mark.parametrize(
    "broken", ["no manifest", "not JSON", "no entry", "a file is missing", "unknown import"]
)
def test_an_unexpected_streamlit_is_served_as_usual(tmp_path, broken):
    static = static_folder(tmp_path)
    manifest = static / "manifest.json"
    if broken == "no manifest":
        manifest.unlink()
    elif broken == "not JSON":
        manifest.write_text("<html>")
    elif broken == "no entry":
        manifest.write_text(manifest.read_text().replace("isEntry", "isOther"))
    elif broken == "a file is missing":
        (static / "static" / "js" / "react.B2.js").unlink()
    else:
        manifest.write_text(manifest.read_text().replace('["react"]', '["unknown"]'))
        manifest.write_text(manifest.read_text().replace('["react", ', '["unknown", '))

    assert bundle_of(static, {}) is None


def test_the_installed_streamlit_is_bundled_without_relative_imports():
    bundle = first_page_bundle()
    assert bundle is not None
    found = modules_in(bundle)

    assert len(found) > 60
    for path, code in found.items():
        assert not re.search(rb"""(from|import)\s*\(?\s*["'`]\./""", code), path
        assert b"import.meta.url" not in code
    static = {Path(path).name for path in found if path.startswith("/static/")}
    imported = {
        name.decode()
        for path, code in found.items()
        if path.startswith("/static/")
        for name in re.findall(rb"""(?:from|import)\s*["'`]streamlit/([^"'`]+)""", code)
    }
    assert imported <= static
    assert len(bundle.compressed) < 1_000_000

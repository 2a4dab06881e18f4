"""Run folders in which every text that a page can show is an attack."""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.attacks.hostile_folders import EVENTS
from toolkit.telemetry.runfolder.layout import LABELS, MANIFEST, METRICS_JSONL, RANKS
from toolkit.telemetry.runfolder.process import boot_id, host_name, process_started

BEGAN = 1_700_000_000.0
STEPS = 24
RAN = "window.__pwned"
"""Where an executed payload leaves its name, by calling the function `pwn`."""
INIT_SCRIPT = f"{RAN} = []; window.pwn = (name) => {{ {RAN}.push(String(name)); }};"

WORDS_OF_MARKUP = (
    *("pwnbold", "pwnem", "pwndel", "pwncode", "pwnheading", "pwnitem", "pwnquote", "pwncell", "pwnfence"),
    *("pwnred", "pwnblue", "pwnsmall", "pwnbadge", "pwnlink", "pwnb", "pwnsub", "pwnspan", "pwntext"),
)
"""Each is inside markup characters; one without them on a page means that the markup was obeyed."""

_ONE_ID = "of a finding and of an error"
LONG = "<b>pwnlong</b> " * 7_000
WIDE = "W" * 100_000


def payloads(beacon: str) -> dict[str, str]:
    """Return attacks by name; those that fetch something fetch it from `beacon`, host and port."""
    url = f"http://{beacon}"
    return {
        "script": "<script data-pwn>pwn('script')</script>",
        "image that fails": "<img data-pwn src=x onerror=\"pwn('img')\">",
        "image": f"<img data-pwn src={url}/html.png>",
        "svg": "<svg data-pwn onload=pwn('svg')>",
        "frame": "<iframe data-pwn srcdoc=\"<script>parent.pwn('frame')</script>\"></iframe>",
        "refresh": f"<meta data-pwn http-equiv=refresh content='0;url={url}/meta'><base data-pwn href={url}/>",
        "style": f"</style><style data-pwn>*{{background:url({url}/style.png)}}</style>",
        "css": f"red;background:url({url}/css.png);x:",
        "end of script": "</script><script data-pwn>pwn('end')</script><!--",
        "attribute": "\"'><b data-pwn onmouseover=\"pwn('attribute')\" autofocus onfocus=pwn('focus') tabindex=1>",
        "end of JSON": "\"}]}';pwn('json');//`${pwn('template')}`\\",
        "Markdown image": f"![pwn]({url}/md.png)",
        "image by reference": f"![pwn][pwn]\n\n[pwn]: {url}/reference.png",
        "Markdown link": f"[pwntext]({url}/link)",
        "link that runs": "[pwntext](javascript:pwn('link'))",
        "bare addresses": f"<{url}/auto> {url}/bare www.pwn.example pwn@pwn.example",
        "heading": "\n# pwnheading\n\n- pwnitem\n\n> pwnquote",
        "table": f"\n\n|pwncell|b|\n|-|-|\n|![]({url}/cell.png)|d|\n",
        "fence": "\n```html\npwnfence\n```\n~~~\n    four",
        "emphasis": "**pwnbold** _pwnem_ ~~pwndel~~ `pwncode`",
        "formula": f"$\\frac{{pwn}}{{2}}$ $$\\href{{{url}/tex}}{{x}}$$",
        "icons": ":smile: :material/skull: :streamlit: <- -> --",
        "colours": ":red[pwnred] :blue-background[pwnblue] :small[pwnsmall] :green-badge[pwnbadge]",
        "closing brackets": f"]] pwn](http://{beacon}/closed) ] [ ]( :red[",
        "entities": f"&lt;img src={url}/entity.png onerror=pwn('entity')&gt; &#60;b&#62;pwn&amp;lt;",
        "chart markup": f'<a href="{url}/chart">pwnlink</a><b>pwnb</b><br><sub>pwnsub</sub>'
        '<span style="color:red">pwnspan</span>',
        "chart link": "<a href=\"javascript:pwn('chart')\" target=_top>pwnlink</a>",
        "template": "%{x} %{customdata} %{fullData.name} {{1234*4321}} ${1234*4321} {pwn} {0!r} %s%n",
        "paths": "a.b[0] c:Q datum.x ['x']",
        "prototype": "__proto__",
        "constructor": "constructor",
        "toString": "toString",
        "colour of ours": "@critical",
        "colour of no one": "@constructor/0.5",
        "backwards": "\u202egnp.exe\u2066\u2067 \u200fpwn",
        "nothing to see": "a\u200bb\ufeffc\u2060d\u00ade",
        "terminal": "\x1b[31mred\x07\x00\x08\x7f\x9b",
        "line separators": "a\u2028b\u2029c\x0bd\x85e",
        "spreadsheet": f'=HYPERLINK("{url}/sheet";"pwn")',
        "no number": "NaN",
        "large number": str(2**70),
        "spaces": "   ",
        "path": "../../../../etc/passwd",
        "long": LONG,
        "wide": WIDE,
    }


class Poison:
    """Returns the next payload each time, so that no place always gets the same."""

    def __init__(self, beacon: str, first: int = 0) -> None:
        self.by_kind = payloads(beacon)
        self._texts = list(self.by_kind.values())
        self._places = count(first)

    @property
    def texts(self) -> Sequence[str]:
        return tuple(self._texts)

    def next(self, limit: int | None = None) -> str:
        """Return the next payload, cut where the format itself allows no more."""
        return self._texts[next(self._places) % len(self._texts)][:limit]

    def several(self, number: int, limit: int | None = None) -> list[str]:
        return [self.next(limit) for _ in range(number)]


def poisoned_run(
    root: Path,
    name: str,
    poison: Poison,
    *,
    live: bool = False,
    began: float | None = None,
    tag: str | None = None,
    max_bytes: int = 900_000,
) -> Path:
    """Write a run folder whose every text is of `poison`; `tag` is an extra tag, to find the run."""
    folder = root / name
    folder.mkdir(parents=True)
    began = began if began is not None else (time.time() - STEPS if live else BEGAN)
    lines: list[bytes] = []
    for number, record in enumerate(_records(poison, began, live)):
        line = _line({"seq": number, "session": 1, "time": began + number * 0.01, **record})
        if len(line) < max_bytes:
            lines.append(line)
    # A lone surrogate, which JSON can hold but no page can show; and numbers too large for a column.
    lines += [
        b'{"event":"step","time":%f,"global_step":%d,"half \\ud800":1.0,"x":"\\udfff"}\n' % (began, STEPS),
        b'{"event":"half \\ud83d","time":%f,"seq":1,"text":"\\ud800"}\n' % began,
        b'{"event":"step","time":1e999,"global_step":%d,"train_loss":1e999}\n' % 2**70,
        b'{"event":"step","time":NaN,"global_step":Infinity}\n',
        b'{"event":"step","global_step":%s}\n' % (b"9" * 5_000),
        b'\xff\xfe{"event":"not utf-8"}\n',
        b'{"event":"not \xc3\x28 utf-8"}\n',
        b"[" * 2_000 + b"\n",
    ]
    (folder / METRICS_JSONL).write_bytes(b"".join(lines))
    (folder / MANIFEST).write_bytes(_json(_manifest(poison, name, began, live, tag)))
    (folder / LABELS).write_bytes(_json(_labels(poison, tag)))
    _files(folder, poison)
    return folder


def half_characters(folder: Path) -> None:
    """Put lone surrogates into the name, the tags and the notes of a run folder."""
    manifest = (folder / MANIFEST).read_bytes()
    (folder / MANIFEST).write_bytes(manifest.replace(b'"display_name": "', b'"display_name": "\\ud800 ', 1))
    (folder / LABELS).write_bytes(b'{"notes": "\\ud800", "tags": ["\\udfff"]}')


# ---------------------------------------------------------------- run.json and labels.json


def _manifest(poison: Poison, name: str, began: float, live: bool, tag: str | None) -> dict[str, Any]:
    ended = None if live else began + STEPS
    own = {
        "pid": os.getpid(),
        "pid_started": process_started(os.getpid()) if live else 7,
        "host": host_name() if live else poison.next(),
        "boot_id": boot_id() if live else poison.next(),
    }
    session = {
        "session": 1,
        "started": began,
        "ended": ended,
        "status": "running" if live else poison.next(40),
        "reason": None if live else poison.next(),
        "perf_tag": poison.next(),
        "session_tag": poison.next(),
        "journal": poison.next(),
        **own,
    }
    earlier = {
        **session,
        "host": poison.next(),
        "status": poison.next(),
        "reason": poison.next(),
        "ended": began,
    }
    return {
        "format": 1,
        "run_id": f"{zlib.crc32(os.fsencode(name)):016x}",
        "name": poison.next(),
        "display_name": poison.next(),
        "project": poison.next(),
        "tags": [*([tag] if tag else []), *poison.several(5)],
        "created": began,
        "heartbeat": {"time": time.time() if live else began + STEPS, "seq": 2**63, "global_step": STEPS - 1},
        "control": {
            "log_every_now": 10 if live else poison.next(),
            "actions": [*poison.several(3), "save", "stop", "trace"],
            "knobs": _knobs(poison),
        },
        "diagnostics": {poison.next(): poison.next(), "nan": poison.next()},
        "summary": {
            "max_steps": STEPS,
            "epoch": poison.next(),
            "train_loss": 1.5,
            "lr": 1e308,
            "samples_per_sec": -1e308,
            poison.next(60): poison.next(),
        },
        "sessions": [earlier, session],
        poison.next(60): poison.next(),
    }


def _knobs(poison: Poison) -> dict[str, Any]:
    return {
        poison.next(): {"type": "text", "value": poison.next()},
        f"{poison.next(90)} as a switch": {"type": "bool", "value": poison.next()},
        "a whole number": {"type": "int", "low": 0, "high": 10, "value": 2},
        "too large": {"type": "int", "low": 0, "high": 2**63, "value": 2**63},
        "upside down": {"type": "int", "low": 10, "high": 1, "value": 5},
        "no bounds": {"type": "float", "low": poison.next(), "high": poison.next(), "value": poison.next()},
        "outside": {"type": "float", "low": 0.0, "high": 1.0, "value": 1e308},
        "mixed": {"type": "float", "low": 0, "high": 1.0, "value": "0.5"},
        "of no kind": {"type": {"a": 1}, "value": [poison.next()]},
        "nothing at all": poison.next(),
        "an honest one": {"type": "float", "low": 0.0, "high": 1.0, "value": 0.25},
    }


def _labels(poison: Poison, tag: str | None) -> dict[str, Any]:
    return {
        "display_name": poison.next(150).strip() or "of spaces",
        "tags": [*([tag] if tag else []), *(text.strip() or "blank" for text in poison.several(8, 60))],
        "notes": "\n".join(poison.several(8, 2_000)),
        "acknowledged": poison.several(3, 500),
        "muted": poison.several(3, 500),
        poison.next(60): poison.next(500),
    }


# ---------------------------------------------------------------- metrics.jsonl


def _records(poison: Poison, began: float, live: bool) -> Iterator[dict[str, Any]]:
    yield {
        "event": "start",
        "run_name": poison.next(),
        "config": {
            **{text[:200]: text[:2_000] for text in poison.texts},
            "nested": {poison.next(100): [poison.next(), {poison.next(100): poison.next()}]},
            "large": 2**63,
            "list": poison.several(4),
        },
        "host": poison.next(),
        "command_line": poison.next(),
        "git": {"commit": poison.next(), poison.next(100): poison.next()},
        "packages": {poison.next(100): poison.next()},
        "accelerators": [{"index": 0, "name": poison.next()}, {"index": 1, "name": WIDE}, poison.next()],
        "perf_tag": poison.next(),
        "session_tag": poison.next(),
    }
    yield {
        "event": "environment",
        "accelerators": [
            {"index": 0, "name": poison.next()},
            {"index": 2**62, "name": poison.next()},
            {"index": poison.next(), "name": [poison.next()]},
        ],
        "os": poison.next(),
        "cpu": poison.next(),
        "python": poison.next(),
        "packages": {poison.next(100): poison.next()},
    }
    own = {text[:300]: 1.0 for text in poison.texts}
    grouped = {f"{poison.next(60)}/{poison.next(60)}": 2.0 for _ in range(4)}
    for step in range(STEPS):
        yield {
            "event": "step",
            "time": began + step,
            "elapsed": float(step),
            "global_step": step,
            "train_loss": 2.0 / (1 + step) if step != 12 else None,
            **({"non_finite": {"train_loss": "NaN", poison.next(60): poison.next(60)}} if step == 12 else {}),
            "lr": 1e-4,
            "sec_per_step": 1.0,
            "ledger/training": 0.7,
            "ledger/data_wait": 0.1,
            f"ledger/{poison.next(60)}": 0.1,
            f"time/{poison.next(60)}": 0.1,
            f"device_time/{poison.next(60)}": 0.1,
            **({name: value * step for name, value in own.items()} if step % 4 == 0 else {}),
            **grouped,
            poison.next(60): poison.next(500),
        }
    yield from _about_the_machine(poison)
    yield from _spans(poison, began)
    yield from _texts_of_a_model(poison)
    yield from _troubles(poison)
    for text in poison.texts:
        yield {"event": text[:500], poison.next(100): poison.next(500), "global_step": 3}
    yield {"event": "epoch", "epoch": poison.next(), "global_step": 20, poison.next(100): 1.0}
    yield {"event": "eval", "global_step": 20, "val_loss": 1.0, poison.next(100): 1.0}
    yield filled("checkpoint", poison, is_best=poison.next())
    for _ in range(6):
        yield filled("control_change", poison, status="applied", actions=poison.several(2))
    yield filled("message", poison)
    yield filled("lost", poison, records=poison.next())
    if not live:
        yield filled("end", poison)


def filled(kind: str, poison: Poison, limit: int | None = None, **own: Any) -> dict[str, Any]:
    """Return a record of this kind with every field that is read; its texts are attacks, but for its `own` fields."""
    record = next(one for one in EVENTS if one["event"] == kind)
    return {**_attacked(record, poison, limit), "event": kind, **own}


def _attacked(value: Any, poison: Poison, limit: int | None) -> Any:
    if isinstance(value, dict):
        # A name of one letter is the script's own.
        names = (name if len(name) > 1 else poison.next(100) for name in value)
        return dict(zip(names, (_attacked(item, poison, limit) for item in value.values()), strict=True))
    if isinstance(value, list):
        return [_attacked(item, poison, limit) for item in value]
    return poison.next(limit) if isinstance(value, str) else value


def _about_the_machine(poison: Poison) -> Iterator[dict[str, Any]]:
    yield {
        "event": "system",
        "cpu_percent": 1e308,
        "ram_used_mb": -1.0,
        "process_threads": 2**63,
        "gpu/0/util": 1e308,
        "gpu/0/mem_used_gb": 1e300,
        "gpu/0/mem_total_gb": 1e-300,
        "gpu/0/temp_c": -1e308,
        "gpu/0/power_w": 1e308,
        f"gpu/0/{poison.next(60)}": 1.0,
        f"gpu/{'9' * 5_000}/util": 1.0,
        "gpu/\u0663/util": 1.0,
        f"gpu/{2**70}/util": 50.0,
        f"cpu_{poison.next(60)}": 1.0,
    }


def _spans(poison: Poison, began: float) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(poison.texts):
        yield {
            "event": "span",
            "id": f"{number + 1:016x}",
            "parent_id": f"{number:016x}" if number % 3 else poison.next(60),
            "name": text[:400],
            "start": began + 2 + number * 0.1,
            "duration": 0.5,
            "clock": poison.next(100) if number % 5 == 0 else "host",
            "kept": poison.next(60),
            "thread": poison.next(500),
            "error": {"type": poison.next(500), "message": poison.next(500)} if number % 2 else None,
            "attributes": {poison.next(60): poison.next(500) for _ in range(4)},
            "global_step": number % STEPS,
        }
    yield {
        "event": "span_start",
        "id": "f" * 16,
        "name": poison.next(400),
        "start": began + 4,
        "attributes": {poison.next(): poison.next()},
    }
    yield {"event": "span_event", "span_id": poison.next(), "span": poison.next(), "name": poison.next()}
    yield {
        "event": "span_summary",
        "span_times": {
            text[:400]: {"count": 3, "total": 1.5, "p50": 0.5, "p95": 0.6, "max": 0.7}
            for text in poison.texts
        },
    }
    yield {"event": "ledger", f"ledger/{poison.next(60)}": 1.0, "ledger/training": 1.0}


def _texts_of_a_model(poison: Poison) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(poison.texts):
        yield {
            "event": "completion",
            "global_step": number // 3,
            "prompt": text[:3_000] if number % 2 else "the same prompt",
            **(
                {"chosen": text[:3_000], "rejected": poison.next(3_000)}
                if number % 4 == 3
                else {"completion": text[:3_000]}
            ),
            "kind": poison.next(200),
            "split": poison.next(60),
            "reward": 1.0,
            f"rewards/{poison.next(60)}": 0.5,
            poison.next(60): poison.next(500),
            "cut": poison.several(2, 200),
        }
    names = [
        *("sample.txt", "sample.png", "tall.png", "torn.png", "page.png", "sound.wav", "page.html"),
        "page.svg",
    ]
    for number, text in enumerate(poison.several(10, 3_000)):
        for name in (names[number % len(names)], poison.next(200), f"{poison.next(60)}.png"):
            yield {"event": "sample", "path": name, "prompt": text, "global_step": number}
    for name in names:
        yield {"event": "sample", "path": name, "prompt": "every kind of file", "global_step": 5}


def _troubles(poison: Poison) -> Iterator[dict[str, Any]]:
    for number in range(6):
        about = {"metric": "train_loss"} if number % 2 else {}
        yield filled(
            "finding",
            poison,
            3_000,
            **about,
            id=poison.next(200) if number else _ONE_ID,
            severity=("critical", "warning", "info")[number % 3],
            state="open",
            start_step=5,
            noticed_step=6 if number else 2**63,
            remedies=[poison.next(60), "stop"],
            evidence={poison.next(60): 1.0, "text": poison.next(500)},
        )
    # Foreign records, shown as far as possible.
    yield {"event": "finding", "kind": poison.next(), "message": poison.next(), "severity": poison.next()}
    for number in range(3):
        yield filled(
            "error",
            poison,
            id=poison.next(200) if number else _ONE_ID,
            type=poison.next(200),
            traceback="\n".join(poison.several(4)),
            source="",
            count=2**63,
            global_step=2**63,
        )


# ---------------------------------------------------------------- other files


def _files(folder: Path, poison: Poison) -> None:
    # File names hold neither slashes nor NUL, so of most payloads a part is left.
    for text in poison.texts:
        name = text.replace("/", "\u2215").replace("\x00", "")[:60]
        (folder / f"{name}.txt").write_bytes(text.encode("utf-8", "replace")[:5_000])
    (folder / os.fsdecode(b"\xff\xfe.txt")).write_bytes(b"\xff\xfe")
    (folder / "sample.txt").write_bytes("\n".join(poison.texts).encode("utf-8", "replace")[:50_000])
    (folder / "sample.png").write_bytes(png(8, 8))
    (folder / "tall.png").write_bytes(png(2, 200_000))
    (folder / "torn.png").write_bytes(png(8, 8)[:50] + b"<script data-pwn>pwn('png')</script>")
    (folder / "page.png").write_bytes(b"\x89PNG\r\n\x1a\n<html><script>pwn('page')</script>")
    (folder / "sound.wav").write_bytes(b"<html><script>pwn('sound')</script>")
    (folder / "page.html").write_bytes(b"<script data-pwn>pwn('html')</script>")
    (folder / "page.svg").write_bytes(b'<svg xmlns="http://www.w3.org/2000/svg" onload="pwn(1)"/>')
    ranks = folder / RANKS
    ranks.mkdir()
    for name in ("00001", "99999999999999999999", "-1", "1e3", "\u0663\u0663\u0663\u0663\u0663"):
        (ranks / f"{name}.jsonl").write_bytes(
            b"".join(
                _line(
                    {
                        "event": "step",
                        "time": BEGAN + step,
                        "global_step": step,
                        "sec_per_step": 1.0,
                        "rank": 1,
                    }
                )
                for step in range(STEPS)
            )
        )
    (ranks / "<img data-pwn src=x onerror=pwn('rank')>.jsonl").write_bytes(b"")


def png(width: int, height: int) -> bytes:
    """Return a grey image; even a large one is a small file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compressobj(6)
    line = b"\x00" + b"\x80" * width
    body = (
        b"".join(rows.compress(line * min(1_000, height - at)) for at in range(0, height, 1_000))
        + rows.flush()
    )
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _json(mapping: Mapping[str, Any]) -> bytes:
    return json.dumps(mapping, indent=1).encode()


def _line(record: Mapping[str, Any]) -> bytes:
    # As any program writes JSON; the line separators and control characters stay escaped.
    return json.dumps({"event": record["event"], **record}, separators=(",", ":")).encode() + b"\n"

"""Every token that gitleaks and detect-secrets know is masked, and each is found by what the document says."""

from __future__ import annotations

import json
import re

from tests.lengths import longer
from tests.privacy.anchors import (
    DETECT_SECRETS,
    DOCUMENT,
    GITLEAKS,
    OURS,
    TOKENS,
    document,
    sample,
    token,
)
from tests.privacy.token_samples import samples
from tests.telemetry.logged import make_logger
from toolkit.telemetry.privacy import token_shapes
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.secret_shapes import mask_text
from toolkit.telemetry.privacy.token_shapes import SHAPES, SHORTEST, Shape

APPLYING = [rule for rule in (*GITLEAKS, *DETECT_SECRETS, *OURS) if rule.applies]
SERVICES = {shape.service: shape for shape in SHAPES}
OF_A_SHAPE = [rule for rule in APPLYING if rule.found_by in SERVICES]
GUESSED = {shape.service for shape in SHAPES if shape.check in token_shapes._GUESSES}
"""Shapes that count only in free text: they have no fixed part, and names may look the same."""
WAYS = {"name", "service name", "text", "address", "random"}
PROSE = (
    "Once upon a time a fox ran over a hill. It was never seen again, and the key to its den is lost. " * 20
)
SEEDS = range(3)


def test_the_document_lists_the_shapes_and_rules_that_there_are():
    written = DOCUMENT.read_text(encoding="utf-8")

    assert written == document(written), "write its tables with python -m tests.privacy.anchors"


def test_the_lists_are_whole():
    assert len(GITLEAKS) == 222
    assert len({rule.name for rule in GITLEAKS}) == 222
    assert len({rule.name.partition(" ")[0] for rule in DETECT_SECRETS}) == 27


def test_each_rule_is_found_by_a_shape_or_another_way():
    assert {rule.found_by for rule in APPLYING} - WAYS <= set(SERVICES)


def faults_of(shape):
    """Return what is wrong with an entry: tokens of its pattern that hints or masking miss."""
    tokens, alternatives = samples(shape.pattern, shape.check or (lambda _: True))
    return [
        *(["no sample of an alternative"] if len(tokens) < alternatives else []),
        *(f"no hint in {token}" for token in tokens if not any(hint in token for hint in shape.hints)),
        *(f"not masked: {token}" for token in tokens if token_shapes._without(shape, token, "") == token),
        *(f"too short: {token}" for token in tokens if len(token) < SHORTEST),
    ]


def test_every_token_that_a_pattern_describes_has_a_hint_and_is_masked():
    faults = {shape.service: faults for shape in SHAPES if (faults := faults_of(shape))}
    leaks = [
        token
        for shape in SHAPES
        for token in samples(shape.pattern, shape.check or (lambda _: True), seed=1)[0]
        if token in token_shapes.mask_tokens(f"we use {token} here", "***")
    ]

    assert faults == {}
    assert leaks == []


def test_an_entry_with_a_missing_hint_is_noticed():
    toy = Shape("Toy", r"(?:toy|play)_[a-z0-9]{20,}", ("toy_", "play_"))

    assert faults_of(toy) == []
    assert [fault[:8] for fault in faults_of(toy._replace(hints=("toy_",)))] == ["no hint "]


def test_every_sample_is_masked_wherever_it_is(record_property):
    masker = Masker({})
    looked_at = [
        (rule.name, place, value, parts)
        for rule in APPLYING
        for seed in SEEDS
        for place, value, parts in places_of(rule, seed)
    ]
    leaks = [
        (name, place)
        for name, place, value, parts in looked_at
        if any(part in json.dumps(masker.mask(value), ensure_ascii=False) for part in parts)
    ]

    assert leaks == []
    record_property(
        "measured", f"{len(APPLYING)} kinds of secret in {len(looked_at):,} places, {len(leaks)} found"
    )


def places_of(rule, seed):
    """Yield a sample in each place where it may appear, and the parts of it that must not be seen."""
    if rule.found_by in ("name", "service name"):
        name, _, recipe = rule.recipe.partition(" ")
        value, parts = sample(recipe, seed)
        said = name if rule.found_by == "name" else f"{name}_api_key"
        yield "setting", {name: value}, parts
        yield "nested setting", {"outer": [{name.upper(): value}]}, parts
        yield "option", [f"--{name}", value], parts
        yield "assignment", f'{said} = "{value}"', parts
        return
    value, parts = sample(rule.recipe.replace("\\n", "\n"), seed)
    yield "alone", value, parts
    yield "setting", {"note": value}, parts
    yield "prose", f"{PROSE}\n{value}\n{PROSE}", parts
    if rule.found_by in SERVICES or rule.found_by == "random":
        yield "sentence", f"we use {value}, do we not", parts
    if rule.found_by in SERVICES:
        yield "JSON", f'{{"x":"{value}"}}', parts
    if rule.found_by != "random" and rule.found_by not in GUESSED:
        yield "argument", {"args": ["train.py", value]}, parts
        yield "key", {value: 1}, parts


def test_every_sample_is_of_the_shape_that_the_document_names_and_holds_one_of_its_hints():
    """Without a hint in it, the pattern is never tried on a text."""
    wrong = []
    for rule in OF_A_SHAPE:
        shape = SERVICES[rule.found_by]
        for seed in SEEDS:
            text, _ = sample(rule.recipe, seed)
            found = re.search(rf"(?<![A-Za-z0-9])(?:{shape.pattern})", text, re.ASCII)
            is_found = found is not None and token_shapes._without(shape, text, "***") != text
            if not is_found or len(found[0]) < SHORTEST or not any(hint in found[0] for hint in shape.hints):
                wrong.append((rule.name, shape.service, text[:8]))

    assert wrong == []


def test_no_shape_takes_long_for_a_hostile_text():
    """A pattern whose work grows with the square of the text would not end here."""
    for shape in SHAPES:
        for piece in ("a1B2", "aaaa", "-_", *filter(None, shape.hints)):
            token_shapes._without(shape, piece * (20_000 // len(piece)), "***")
    for piece in ("aB3", "aB3/", "aB3 " * 8, "aGZf", "61", "key ", "aB3x" * 19 + "\n", "machine a login b "):
        mask_text(piece * (200_000 // len(piece)))


IDS = re.compile(r"(?:\{(?:h\d+|uuid)\}|[-:])+")
"""Recipes of tokens that look like a commit, a checksum or an id: masked only if something says what they are."""
PLACES = {
    "free text": lambda text: f"we use {text} here",
    "source": lambda text: f"client = Client('{text}', 30)",
    "path": lambda text: f"https://api.example.com/v1/{text}/models",
}
NAMES = {
    "list": lambda text: {"args": ["train.py", text]},
    "name": lambda text: {f"loss/{text}": 1.0},
}
TELLING_PLACES = {
    "key": lambda text: {"api_key": text},
    "nested": lambda text: {"auth": {"value": [text]}},
    "option": lambda text: ["--service-token", text],
    "assignment": lambda text: f'SERVICE_API_KEY="{text}"',
    "header": lambda text: f"Authorization: Bearer {text}" if " " not in text else {"Authorization": text},
}


def test_tokens_of_services_are_masked_known_shape_or_not(record_property):
    masker = Masker({})
    seeds = range(longer(2, 20))

    def passing(places):
        return [
            (service, place)
            for service in TOKENS
            for seed in seeds
            for text, parts in [token(service, seed)]
            for place, put in places.items()
            if any(part in json.dumps(masker.mask(put(text))) for part in parts)
        ]

    ids = {service for service, recipe in TOKENS.items() if IDS.fullmatch(recipe)}
    others = len(TOKENS) - len(ids)
    looked_at = others * len(seeds) * len(PLACES)
    passed = [one for one in passing(PLACES) if one[0] not in ids]
    named = {service for service, _ in passing({"named": lambda text: f"the service key is {text}"})}

    assert len(TOKENS) >= 129
    assert passing(TELLING_PLACES) == []
    assert len(passed) <= 0.03 * looked_at, sorted(set(passed))
    assert not ids & named, "hex digits that are called a key"
    record_property(
        "measured",
        f"{len(TOKENS)} kinds of token, 0 pass under a telling key; in free text "
        f"{100 * len(passed) / looked_at:.1f} % of "
        f"{others} kinds, and {len(ids)} kinds that are hex digits or ids",
    )


def test_what_the_rules_find_is_in_no_byte_of_a_run_wherever_it_was_logged(tmp_path, record_property):
    """In events, lists, completions, attributes of spans, the summary, tables and the names of metrics."""
    masker = Masker({})
    made = {service: token(service, 0) for service in TOKENS}
    found = {
        service: parts
        for service, (text, parts) in made.items()
        if not any(
            part in json.dumps([masker.mask(put(text)) for put in (PLACES | NAMES).values()])
            for part in parts
        )
    }
    with make_logger(tmp_path, csv="all", log_every=2) as log:
        for step, (text, _) in enumerate(made.values()):
            log.log_event("note", text=f"we use {text} here", items=["train.py", text])
            log.log_completion(step, prompt=f"say {text}", completion=text)
            with log.span("encode", remark=f"with {text} now"):
                log.log_step(step, 0.5, **{f"loss/{text}": 1.0})
            log.summary[f"best {step}"] = [text]
        log.log_table("rows", [{"remark": f"a {text} b"} for text, _ in made.values()])
        log.log_table("keys", [{"api_key": text, "login": {"password": text}} for text, _ in made.values()])
    written = "".join(
        path.name + path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()
    )

    assert {service for service, parts in found.items() if any(part in written for part in parts)} == set()
    assert len(found) >= 80
    record_property("measured", f"{len(found)} of {len(TOKENS)} kinds of token found, 0 in any file of a run")

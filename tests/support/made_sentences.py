"""Few made sentences in the files of Banking77 and CLINC150."""

import csv
import json
import zlib

import numpy as np

from retarget.lab.data.banking77 import HEADER


def made_sentences(intents, per_intent, first=0):
    """Sentences whose words tell the intent, some of them quoted in CSV."""
    return [
        (f"{chr(97 + intent) * 15} number {first + i}, a, comma", f"intent {intent}")
        for intent in range(intents)
        for i in range(per_intent)
    ]


def write_sentences(folder, intents, per_intent):
    parts = {"train": per_intent, "test": 2}
    for part, count in parts.items():
        with (folder / f"banking77_{part}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = made_sentences(intents, count, 100 * (part == "test"))
            csv.writer(file).writerows([HEADER, *rows])
    outside = [(f"something else {i}", "oos") for i in range(5)]
    sizes = {"train": per_intent, "val": 2, "test": 2}
    known = {part: made_sentences(intents, count) for part, count in sizes.items()}
    known |= {f"oos_{part}": outside for part in sizes}
    (folder / "clinc150_full.json").write_text(json.dumps(known), encoding="utf-8")


def made_features(texts, width):
    """(n, width) in float32, alike for sentences that begin with the same word; length 1."""
    rows = []
    for text in texts:
        word = np.random.default_rng(zlib.crc32(text.split()[0].encode())).normal(size=width)
        own = np.random.default_rng(zlib.crc32(text.encode())).normal(size=width)
        rows.append(word + own / 2)
    rows = np.array(rows)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

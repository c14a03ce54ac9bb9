"""Detectors: phases of scenes, losses, teachers, pseudo labels, AP; on tiny networks."""

import copy
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import FrozenBatchNorm2d

from mrdc._utils.errors import DataError, UsageError
from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.data.scenes import Scenes, SceneSplits
from mrdc.detection.album import Album
from mrdc.detection.augment import erased, mirrored, strong, weak
from mrdc.detection.detectors import (
    Detector,
    LiteBody,
    build_detector,
    focal,
    fold_norms,
    pooled_features,
)
from mrdc.detection.evaluate import (
    Found,
    average_precision,
    detect,
    label_quality,
    matched,
    overlap,
)
from mrdc.detection.learner import make_learner, sampled
from mrdc.detection.methods import (
    PseudoLabels,
    Shot,
    Supervised,
    Task,
    UnbiasedTeacher,
    averaging_rate,
    flipped,
    losses,
)
from mrdc.detection.stream import make_scenes
from tests.scenes import CPU, SIDE, rows, scenes, small, splits, tiny

pytestmark = pytest.mark.usefixtures("seeded")

# Phases


@given(phases=st.integers(1, 4), labelled=st.integers(1, 3), seed=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_phases_share_no_image(phases: int, labelled: int, seed: int) -> None:
    """Neither labelled nor unlabelled ones, of any phase."""
    made = make_scenes(splits(), phases, labelled, 2, seed)
    names = [made.train.photos[i].id for part in made.labelled for i in part]
    names += [photo.id for part in made.unlabelled for photo in part]
    assert len(names) == len(set(names)) == phases * (labelled + 2)


def test_phases_depend_on_seed_and_names_alone() -> None:
    """Not on the order in which a json lists the images."""
    given_ = splits()
    turned = SceneSplits(given_.train.pick(range(23, -1, -1)), given_.test, None)

    def ids(of: SceneSplits, seed: int) -> list[list[str]]:
        made = make_scenes(of, 2, 3, 3, seed)
        labelled = [[made.train.photos[i].id for i in part] for part in made.labelled]
        return labelled + [[photo.id for photo in part] for part in made.unlabelled]

    assert ids(given_, 1) == ids(turned, 1)
    assert ids(given_, 1) != ids(given_, 2)


def test_crowds_are_part_of_what_a_run_is_on() -> None:
    """They decide AP; here the last object becomes a crowd."""
    made = splits()
    boxes, crowds = made.test.boxes, made.test.crowds
    test = replace(made.test, boxes=(*boxes[:-1], crowds[-1]), crowds=(*crowds[:-1], boxes[-1]))
    other = replace(made, test=test)
    first, second = (make_scenes(one, 2, 3, 1, seed=0).fingerprint() for one in (made, other))
    assert first != second


def test_a_pool_of_its_own_gives_unlabelled_images() -> None:
    """And then nobody knows their boxes."""
    pool = scenes(range(200, 210)).photos
    made = make_scenes(replace(splits(), unlabelled=pool), 2, 3, 5, 0)
    assert {photo.id for part in made.unlabelled for photo in part} == {p.id for p in pool}
    assert made.truth is None


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "message"),
    [(13, 1, "want 26 labelled images, but there are 24"), (6, 7, "want 14 unlabelled")],
)
def test_refuses_more_images_than_there_are(labelled: int, unlabelled: int, message: str) -> None:
    """Nothing is drawn twice."""
    with pytest.raises(DataError, match=message):
        make_scenes(splits(), 2, labelled, unlabelled, 0)


@given(count=st.integers(1, 9), batch=st.integers(1, 12), seed=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_every_image_comes_once_before_any_comes_again(count: int, batch: int, seed: int) -> None:
    """Steps cut an endless row of permutations."""
    row = [place for step in range(2 * count) for place in sampled(count, batch, step, seed)]
    for start in range(0, len(row) - count + 1, count):
        assert sorted(row[start : start + count]) == list(range(count))


# Losses and views


def test_focal_loss_with_gamma_zero_is_cross_entropy() -> None:
    """To the last bits."""
    logits, labels = torch.randn(7, 4), torch.randint(0, 4, (7,))
    torch.testing.assert_close(focal(logits, labels, 0.0), F.cross_entropy(logits, labels))


def test_focal_loss_by_hand() -> None:
    """(1 - 1/2)^1.5 * log 2 and (1 - 3/4)^1.5 * log 4/3, their mean."""
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    expected = (0.5**1.5 * math.log(2) + 0.25**1.5 * math.log(4 / 3)) / 2
    assert focal(logits, torch.tensor([1, 0]), 1.5).item() == pytest.approx(expected)


def test_sure_answers_have_finite_focal_gradients() -> None:
    """Where p is 1 to the last bit."""
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    focal(logits, torch.tensor([0]), 1.5).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and logits.grad.isfinite().all()


def shots(count: int = 3) -> list[Shot]:
    found = scenes(range(count))
    pairs = zip(found.photos, found.boxes, strict=True)
    images = (torch.from_numpy(CODECS["jpeg"].decode(cast(bytes, p.load()))) for p, _ in pairs)
    tensors = [image.permute(2, 0, 1).float() / 255 for image in images]
    boxes = [torch.from_numpy(box) for box in found.boxes]
    return [Shot(image, box) for image, box in zip(tensors, boxes, strict=True)]


def seeded_losses(model: FasterRCNN, given_: list[Shot]) -> dict[str, float]:
    torch.manual_seed(3)
    return {name: value.item() for name, value in losses(model.train(), given_).items()}


def test_without_focus_losses_are_torchvisions() -> None:
    """All four, for the same draws."""
    ours = tiny()
    theirs = copy.deepcopy(ours)
    theirs.roi_heads.__class__ = RoIHeads
    assert seeded_losses(ours, shots()) == pytest.approx(seeded_losses(theirs, shots()))


def test_focus_lowers_the_loss_of_classes_alone() -> None:
    """The other three stay."""
    plain = tiny()
    sharp = copy.deepcopy(plain)
    sharp.roi_heads.gamma = 1.5
    a, b = seeded_losses(plain, shots()), seeded_losses(sharp, shots())
    assert b["loss_classifier"] < a["loss_classifier"]
    assert {k: v for k, v in a.items() if k != "loss_classifier"} == pytest.approx(
        {k: v for k, v in b.items() if k != "loss_classifier"}
    )


def test_a_scene_without_boxes_is_background() -> None:
    """Its losses are finite, and its boxes teach no places."""
    empty = [Shot(shot.image, torch.zeros(0, 5)) for shot in shots()]
    found = seeded_losses(tiny(), empty)
    assert all(map(math.isfinite, found.values()))
    assert found["loss_box_reg"] == 0


def test_mirroring_twice_changes_nothing() -> None:
    """Image and boxes; once, a box lies on the same pixels."""
    shot = shots(1)[0]
    image, boxes = mirrored(shot.image, shot.boxes[:, :4])
    left, top, right, bottom = (int(v) for v in boxes[0])
    old = [int(v) for v in shot.boxes[0, :4]]
    assert torch.equal(
        image[:, top:bottom, left:right].flip(2), shot.image[:, old[1] : old[3], old[0] : old[2]]
    )
    again, same = mirrored(image, boxes)
    assert torch.equal(again, shot.image) and torch.equal(same, shot.boxes[:, :4])


def test_weak_views_are_mirrored_half_of_the_time() -> None:
    """Labels stay with their boxes."""
    shot = shots(1)[0]
    turned = sum(not torch.equal(weak(shot.image, shot.boxes[:, :4])[0], shot.image)
                 for _ in range(200))  # fmt: skip
    assert 70 < turned < 130
    assert all(torch.equal(flipped(shot).boxes[:, 4], shot.boxes[:, 4]) for _ in range(5))


@pytest.mark.parametrize("side", [1, 4, 5])
def test_the_smallest_images_have_strong_views(side: int) -> None:
    """The blur reaches four pixels; what is no larger is not blurred."""
    for seed in range(8):
        torch.manual_seed(seed)
        assert strong(torch.rand(3, side, 30)).shape == (3, side, 30)


def test_strong_views_stay_images() -> None:
    """Same size, within 0 and 1, and not the same."""
    image = shots(1)[0].image
    views = [strong(image) for _ in range(20)]
    assert all(view.shape == image.shape for view in views)
    assert all(view.min() >= 0 and view.max() <= 1 for view in views)
    assert any(not torch.equal(view, image) for view in views)


@given(height=st.integers(1, 30), width=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_hole_is_one_rectangle_inside(height: int, width: int, seed: int) -> None:
    """The image given stays as it is."""
    torch.manual_seed(seed)
    image = torch.full((3, height, width), 2.0)
    holed = erased(image, (0.05, 0.2), (0.3, 3.3))
    rows, columns = torch.nonzero((holed != 2).any(0), as_tuple=True)
    assert (image == 2).all() and len(rows) > 0
    box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
    assert len(rows) == box


# Detectors


def test_backbones_without_weights_have_no_batch_norm_that_learns() -> None:
    """Group norms, all of which are trained; with weights they would be frozen."""
    model = build_detector("r18", 2, short=64, long=64)
    kinds = {type(module) for module in model.modules()}
    assert nn.GroupNorm in kinds and nn.BatchNorm2d not in kinds and FrozenBatchNorm2d not in kinds
    assert all(p.requires_grad for p in model.parameters())


def test_weights_of_a_backbone_freeze_its_norms_and_first_stage(tmp_path: Any) -> None:
    """And are what the file holds; another network's are refused."""
    from torchvision.models import resnet18, resnet34

    torch.save(resnet18().state_dict(), tmp_path / "r18.pth")
    model = build_detector("r18", 2, short=64, long=64, weights=tmp_path / "r18.pth")
    body = model.backbone.body
    norms = nn.BatchNorm2d | FrozenBatchNorm2d | nn.GroupNorm
    assert not any(isinstance(module, norms) for module in body.modules())
    trained = [name for name, p in body.named_parameters() if p.requires_grad]
    assert {name.split(".")[0] for name in trained} == {"layer2", "layer3", "layer4"}
    assert all(name.endswith("weight.original") for name in trained)
    state = torch.load(tmp_path / "r18.pth", weights_only=True)
    kernels = body.layer4[1].conv2.parametrizations.weight.original
    assert torch.equal(kernels, state["layer4.1.conv2.weight"])
    torch.save(resnet34().state_dict(), tmp_path / "r34.pth")
    with pytest.raises(UsageError, match="not of resnet50"):
        build_detector("r50", 2, short=64, long=64, weights=tmp_path / "r34.pth")
    with pytest.raises(UsageError, match="lite0 has its own"):
        build_detector("lite0", 2, short=64, long=64, weights=tmp_path / "r18.pth")


@pytest.mark.parametrize("name", ["r18", "lite0"])
def test_regions_are_pooled_alike_whatever_was_seen_first(name: Detector) -> None:
    """Torchvision guesses the strides from the first images, wrongly where much is padded."""
    model = build_detector(name, 2, short=40, long=64).eval()
    pool = model.roi_heads.box_roi_pool
    before = list(pool.scales)
    maps = model.backbone(torch.rand(1, 3, 64, 64))
    assert [64 * scale for scale in before] == [len(maps[k][0, 0]) for k in ("0", "1", "2", "3")]
    with torch.no_grad():
        model([torch.rand(3, 40, 64)])
    assert pool.scales == before and (pool.map_levels.k_min, pool.map_levels.k_max) == (2, 5)


def test_folded_norms_change_neither_maps_nor_gradients() -> None:
    """A ResNet with frozen norms of any statistics, and the same with its norms folded."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    plain = resnet18(norm_layer=FrozenBatchNorm2d).double()
    for norm in (m for m in plain.modules() if isinstance(m, FrozenBatchNorm2d)):
        for values in (norm.weight, norm.running_var):
            values.uniform_(0.5, 1.5)
        for values in (norm.bias, norm.running_mean):
            values.normal_()
    folded = copy.deepcopy(plain)
    fold_norms(folded)
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(folded(images), plain(images))
    for net in (plain, folded):
        net(images).square().sum().backward()
    gradients = [[p.grad for p in net.parameters()] for net in (plain, folded)]
    assert len(gradients[0]) == len(gradients[1])
    for theirs, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_lite0_sees_what_the_embedding_sees() -> None:
    """Its last map is that of the network whose weights it has; norms are frozen."""
    from mrdc.nn.lite0 import lite0

    model, network = build_detector("lite0", 2, short=64, long=64), lite0().double()
    image = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    x = F.relu6(network._bn0(network._conv_stem(image)))
    with torch.no_grad():
        expected = network._blocks(x)
        torch.testing.assert_close(LiteBody(network)(image)["3"], expected)
        found = model.backbone.body(image.float())["3"].double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)  # of values up to 5
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    maps = model.backbone(torch.rand(1, 3, 64, 96))
    assert [tuple(m.shape[2:]) for m in maps.values()] == [
        (16, 24),
        (8, 12),
        (4, 6),
        (2, 3),
        (1, 2),
    ]


def test_features_do_not_see_padding() -> None:
    """An image is padded to multiples of 32; its mean is over its own cells."""
    model = tiny().eval()
    model.transform.min_size, model.transform.max_size = (40,), 40
    image = torch.rand(3, 40, 40)
    with torch.no_grad():
        inside = model.backbone.body(model.transform([image])[0].tensors)["0"]
        expected = inside[0, :, :5, :5].mean((1, 2))
        torch.testing.assert_close(pooled_features(model, image), expected)
    assert inside.shape[2] == 8


# Evaluation


def perfect(found: Scenes) -> list[Found]:
    return [Found(boxes, np.ones(len(boxes), np.float32)) for boxes in found.boxes]


def test_perfect_detections_have_full_ap() -> None:
    """In every class; no detection has none."""
    truth = scenes(range(6))
    scores = average_precision(perfect(truth), truth)
    assert (scores["ap"], scores["ap50"], scores["ap75"]) == pytest.approx((100, 100, 100))
    assert scores["by_class"] == {"dark": pytest.approx(100), "bright": pytest.approx(100)}
    none = [Found(np.zeros((0, 5), np.float32), np.zeros(0, np.float32))] * 6
    assert average_precision(none, truth)["ap"] == 0


def test_a_class_that_is_not_there_is_left_out() -> None:
    """Of the mean; its own AP is unknown."""
    truth = scenes(range(1)).pick([0])
    scores = average_precision(perfect(truth), truth)
    assert scores["ap"] == pytest.approx(100)
    assert scores["by_class"] == {"dark": pytest.approx(100), "bright": None}


def test_ap_by_hand() -> None:
    """Half of a class found first, then a miss: precision 1 up to recall 1/2, so 51 of 101."""
    truth = scenes(range(0, 4, 2))
    found = perfect(truth)
    wrong = np.array([[0, 0, 5, 5, 0]], np.float32)
    found[1] = Found(wrong, np.array([0.5], np.float32))
    assert average_precision(found, truth)["by_class"]["dark"] == pytest.approx(100 * 51 / 101)


def test_crowds_count_neither_for_nor_against() -> None:
    """A detection that falls into one is ignored."""
    truth = scenes(range(1))
    crowd = np.array([[0, 0, 10, 10, 0]], np.float32)
    with_crowd = replace(truth, crowds=(crowd,))
    found = [Found(np.concatenate([truth.boxes[0], crowd]), np.array([0.5, 0.9], np.float32))]
    assert average_precision(found, with_crowd)["ap"] == pytest.approx(100)
    assert average_precision(found, truth)["ap"] < 60


def test_overlap_by_hand() -> None:
    """Two 2 x 2 squares that share a 1 x 2 strip: 2 of 6."""
    a, b = rows([0, 0, 2, 2]), rows([1, 0, 3, 2])
    assert overlap(a, b) == pytest.approx(1 / 3)
    assert overlap(a, rows([5, 5, 6, 6])) == 0


def test_a_true_box_is_matched_once() -> None:
    """Of two labels on one box one is right; another class never is."""
    truth = rows([[0, 0, 10, 10, 1]])
    assert matched(rows([[0, 0, 10, 10, 1], [0, 0, 10, 9, 1]]), truth) == 1
    assert matched(rows([[0, 0, 10, 10, 0]]), truth) == 0
    quality = label_quality([rows([[0, 0, 10, 10, 1], [0, 0, 3, 3, 1]])], [truth])
    assert quality == {"labels_per_image": 2, "precision": 50, "recall": 100}


def test_no_labels_have_no_precision_and_no_boxes_no_recall() -> None:
    none, some = rows([]).reshape(0, 5), rows([[0, 0, 10, 10, 1]])
    assert label_quality([none], [some]) == {"labels_per_image": 0, "precision": None, "recall": 0}
    assert label_quality([some], [none]) == {"labels_per_image": 1, "precision": 0, "recall": None}


def test_detecting_keeps_the_mode_and_the_order() -> None:
    """Boxes are in the image's own pixels, labels from 0."""
    album = Album(scenes(range(5)).photos, CPU, 2)
    model = tiny().train()
    found = list(detect(model, album, 2))
    assert len(found) == 5 and model.training
    boxes = np.concatenate([one.boxes for one in found])
    assert boxes[:, :4].min() >= 0 and boxes[:, :4].max() <= SIDE
    assert set(boxes[:, 4]) <= {0.0, 1.0}


def test_an_album_decodes_once_where_there_is_room() -> None:
    """And again where there is none; images are the same."""
    loads: list[str] = []

    def photo(one: Photo) -> Photo:
        def load() -> Any:
            loads.append(one.id)
            return one.load()

        return Photo(one.id, load)

    photos = [photo(one) for one in scenes(range(3)).photos]
    roomy, full = Album(photos, CPU, 1), Album(photos, CPU, 1)
    full._room = 0
    first = [list(roomy.batches(2)) for _ in range(2)]
    assert len(loads) == 3
    second = [list(full.batches(2)) for _ in range(2)]
    assert len(loads) == 9
    for a, b in zip(first[1], second[1], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# Learners


def task(steps: int = 10, count: int = 4) -> Task:
    return Task(Album(scenes(range(50, 50 + count)).photos, CPU, 1), steps, 2)


def stepped(learner: Supervised, model: FasterRCNN, step: int, **given_: Any) -> Tensor:
    """The loss of a step that draws the first two of the pool, or none."""
    places = list(learner.pool(model, step))[:2]
    images = given_.get("unknown", [shot.image for shot in shots(2)])
    torch.manual_seed(11)
    return learner.loss(model, step, shots(), places, images[: len(places)])


def test_a_perfect_labeller_teaches_what_labels_would() -> None:
    """The loss of pseudo-labelled images is that of labelled ones."""
    model = tiny().train()
    learner = PseudoLabels(burn_in=0.0)
    learner.start_phase(model, task())
    given_ = shots(2)
    known = [torch.cat([torch.tensor([float(n)]), shot.boxes[0]]) for n, shot in enumerate(given_)]
    learner.load_state({"labels_": torch.stack(known)})
    supervised = Supervised()
    torch.manual_seed(11)
    expected = supervised.loss(model, 0, shots() + given_, [], [])
    assert stepped(learner, model, 5).item() == pytest.approx(expected.item())


def test_labels_are_made_once_and_only_after_burning_in() -> None:
    """Where the score is above the threshold, strictly."""
    model = tiny().train()
    learner = PseudoLabels(burn_in=0.5, threshold=0.0)
    learner.start_phase(model, task())
    stepped(learner, model, 4)
    assert learner.labels_ is None
    stepped(learner, model, 5)
    first = learner.labels_
    assert first is not None and len(first) > 0 and model.training
    stepped(learner, model, 6)
    assert learner.labels_ is first
    learner.start_phase(model, task())
    assert learner.labels_ is None
    found = Found(np.zeros((2, 5), np.float32), rows([0.7, 0.71]))
    assert len(found.above(0.7)) == 1


@pytest.mark.parametrize(("keep", "count"), [(0, 3), (1, 5)])
def test_images_without_labels_are_left_out_or_background(
    keep: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As told."""
    seen: list[int] = []

    def note(model: FasterRCNN, given_: list[Shot]) -> dict[str, Tensor]:
        seen.append(len(given_))
        return {"loss": torch.zeros(())}

    monkeypatch.setattr("mrdc.detection.methods.losses", note)
    learner = PseudoLabels(burn_in=0.0, keep_empty=keep)
    learner.start_phase(tiny(), task())
    learner.load_state({"labels_": torch.zeros(0, 6)})
    stepped(learner, tiny(), 0)
    assert seen == [count]
    assert "no image got a pseudo label" in learner.report()["warning"]


def test_labels_are_found_by_their_image() -> None:
    """Those of the second and fourth image; only these are drawn from."""
    learner = PseudoLabels(burn_in=0.0)
    learner.start_phase(tiny(), task())
    given_ = torch.tensor([[1.0, 0, 0, 9, 9, 2], [1, 5, 5, 9, 9, 0], [3, 1, 2, 3, 4, 1]])
    learner.load_state({"labels_": given_})
    assert learner.pool(tiny(), 0) == [1, 3]
    counts = [len(boxes) for boxes in learner.labels()]
    assert counts[:4] == [0, 2, 0, 1] and sum(counts) == 3
    np.testing.assert_array_equal(learner.labels()[3], [[1, 2, 3, 4, 1]])


def test_the_teacher_starts_as_the_student_and_follows_slowly() -> None:
    """After k steps the closed form of the running average."""
    model = tiny().train()
    learner = UnbiasedTeacher(burn_in=0.2)
    learner.start_phase(model, task())
    stepped(learner, model, 1)
    assert learner.teacher is None and learner.answers(model) is model
    stepped(learner, model, 2)
    teacher = learner.answers(model)
    name = "roi_heads.box_predictor.cls_score.weight"
    start = model.state_dict()[name].clone()
    assert torch.equal(teacher.state_dict()[name], start) and not teacher.training
    with torch.no_grad():
        model.state_dict()[name].add_(1.0)
    for step in range(3, 6):
        stepped(learner, model, step)
    moved = teacher.state_dict()[name] - start
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - (1 - learner.rate) ** 3))
    assert not any(p.requires_grad for p in teacher.parameters())


def test_the_rate_of_the_average() -> None:
    """0.0004 over the published 8,000 steps, faster in shorter phases, within bounds."""
    assert averaging_rate(8000) == pytest.approx(0.0004)
    assert averaging_rate(800) == pytest.approx(0.004)
    assert averaging_rate(4) == pytest.approx(0.1)
    assert averaging_rate(10**6) == pytest.approx(0.0004)


def test_guessed_boxes_teach_classes_but_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times objectness and classes of unlabelled images; no regression of them."""
    values = {"loss_classifier": 1.0, "loss_box_reg": 10.0, "loss_objectness": 100.0,
              "loss_rpn_box_reg": 1000.0}  # fmt: skip
    calls: list[int] = []

    def fake(model: FasterRCNN, given_: list[Shot]) -> dict[str, Tensor]:
        calls.append(len(given_))
        return {name: torch.tensor(value) for name, value in values.items()}

    monkeypatch.setattr("mrdc.detection.methods.losses", fake)
    learner = UnbiasedTeacher(burn_in=0.0)
    model = tiny().train()
    learner.start_phase(model, task())
    assert stepped(learner, model, 0).item() == 1111 + 4 * 101
    assert calls == [6, 2]  # weak and strong views of three; two unlabelled


def test_regression_parts_get_no_gradient_from_guesses() -> None:
    """The layer that moves boxes sees labelled images alone."""
    model = tiny(gamma=1.5).train()
    found = losses(model, shots())
    (found["loss_classifier"] + found["loss_objectness"]).backward()  # type: ignore[no-untyped-call]
    moves = model.roi_heads.box_predictor.bbox_pred.weight
    assert moves.grad is None or not moves.grad.any()


def test_there_is_always_a_teacher_in_the_end() -> None:
    """Also where burning in, rounded, takes all steps of a phase."""
    for steps in (1, 4):
        model = tiny().train()
        learner = UnbiasedTeacher(burn_in=0.9)
        learner.start_phase(model, task(steps))
        stepped(learner, model, steps - 1)
        assert learner.answers(model) is learner.teacher and len(learner.labels()) == 4


def test_labels_travel_through_a_checkpoint() -> None:
    """Those of the pseudo labeller, and the teacher with its counts."""
    for learner in (PseudoLabels(burn_in=0.0, threshold=0.0), UnbiasedTeacher(burn_in=0.0)):
        model = tiny().train()
        learner.start_phase(model, task())
        stepped(learner, model, 0)
        other = type(learner)(burn_in=0.0)
        other.start_phase(model, task())
        other.load_state({name: value.clone() for name, value in learner.state().items()})
        assert other.state().keys() == learner.state().keys() and learner.state()
        for name, value in learner.state().items():
            assert torch.equal(value, other.state()[name])


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("pseudo-labels", "threshold=1.5", "threshold must be from 0 to less than 1, got 1.5"),
        ("unbiased-teacher", "thresold=0.5", "unknown setting of unbiased-teacher 'thresold'"),
        ("unbiased-teacher", "weight=much", "weight takes a number"),
        ("supervised", "threshold=0.5", "--set threshold=0.5: supervised has no settings"),
    ],
)
def test_refuses_settings_that_are_none(method: str, option: str, message: str) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError, match=message):
        make_learner(small(method, options=(option,)))

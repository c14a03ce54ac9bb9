"""AANets: adaptive aggregation networks (Liu et al., 2021), around LUCIR or PODNet.

From the second phase on there are two branches: a stable one, whose kernels stay as the first
phase left them and are only scaled, and a plastic one. They are mixed after every stage, half
and half. The paper learns the mixing weights, but at the published rate of 1e-8 they do not
move; the published code for PODNet fixes them too. That code starts the second phase with a
scale of 1; here the learned one is kept.
"""

from dataclasses import dataclass, replace

from mrdc.methods.base import Needs, Wrapper
from mrdc.methods.lesson import Lesson


@dataclass
class AANets(Wrapper):
    """Two branches instead of one network; everything else is up to the inner method."""

    @property
    def needs(self) -> Needs:
        return replace(self.inner.needs, body="branches")

    def start_phase(self, lesson: Lesson) -> None:
        if lesson.phase == 1:
            lesson.model = lesson.model.with_body("branches")
        self.inner.start_phase(lesson)

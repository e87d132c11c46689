"""Orders to release: which forms there are, and who has given them."""

from __future__ import annotations

import pytest

from semaphore_operator.orders import RELEASE, Order, Target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("pod/api-1", Target("pod", "api-1")),
        (" pod/payments/api-1 ", Target("pod", "api-1", "payments")),
        ("fence/1790000000000000", Target("fence", "1790000000000000")),
        ("token/0123456789abcdef.17.1", Target("token", "0123456789abcdef.17.1")),
        ("token/0123456789abcdef.17", None),
        ("fence/-1", None),
        ("fence/1e3", None),
        ("pod/", None),
        ("pod/a/b/c", None),
        ("pod/Api", None),
        ("api-1", None),
        ("all", None),
        ("", None),
        ("pod/a\npod/b", None),
    ],
)
def test_an_order_names_a_pod_a_fence_or_a_token(text: str, target: Target | None) -> None:
    assert Order(text, "").target() == target


def test_an_order_is_of_whom_manages_the_annotation() -> None:
    owned = {"f:metadata": {"f:annotations": {".": {}, f"f:{RELEASE}": {}}}}
    managers = [{"manager": "helm", "fieldsV1": {"f:spec": {}}}, {"manager": "kubectl-annotate", "fieldsV1": owned}]
    metadata = {"annotations": {RELEASE: "pod/a"}, "managedFields": managers}
    assert Order.read(metadata) == Order("pod/a", "kubectl-annotate")
    assert Order.read({"annotations": {RELEASE: "pod/a"}}) == Order("pod/a", "")
    assert Order.read({"annotations": {"other": "pod/a"}}) is None
    assert Order.read({}) is None

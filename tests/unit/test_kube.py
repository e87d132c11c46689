from __future__ import annotations

import json

import pytest
from kubernetes.aio.client.exceptions import ApiException

from semaphore_operator.kube import GRANT, KubeUnreachableError, explained

WISH = "list distributedsemaphores in all namespaces"
FORBIDDEN = 'distributedsemaphores.semaphores.dev is forbidden: User "x" cannot list resource'


def refusal(status: int, message: str | None = None) -> ApiException:
    error = ApiException(status=status, reason="Reason")
    error.body = json.dumps({"kind": "Status", "message": message}) if message else "<html>"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (refusal(403, FORBIDDEN), f"this account may not {WISH}: {FORBIDDEN}; {GRANT}"),
        (
            refusal(404),
            f"distributedsemaphores.semaphores.dev is not installed here (wanted: {WISH}): kubectl apply -f",
        ),
        (refusal(401, "Unauthorized"), f"does not know this account (wanted: {WISH}): Unauthorized"),
        (refusal(422, "status.holders: Invalid"), f"refused to {WISH}: 422 status.holders: Invalid"),
        (refusal(500), "500 <html>"),
    ],
)
def test_a_refusal_says_what_to_change(error, said):
    assert said in str(explained(error, WISH))
    assert not isinstance(explained(error, WISH), KubeUnreachableError)


def test_no_answer_is_told_from_a_refusal():
    error = explained(ConnectionRefusedError("Connect call failed ('127.0.0.1', 6443)"), WISH)
    assert isinstance(error, KubeUnreachableError)
    assert "127.0.0.1" in str(error)

"""One POST request: redirects are not followed, certificates are always checked, `https_proxy` is respected."""

from __future__ import annotations

import math
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import is_this_machine
from toolkit.telemetry.core.formatting import cut, one_line
from toolkit.telemetry.core.outbox import MOST_ATTEMPTS, NotSentError

TIMEOUT_S: Final = 10.0
LONGEST_ANSWER: Final = 16 * 1024
_LONGEST_REASON: Final = 200
_MAY_PASS: Final = frozenset({408, 425, 429})
"""Refusals that another attempt may not meet."""


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float = TIMEOUT_S,
    certificates: ssl.SSLContext | None = None,
) -> bytes:
    """Send `body` to `url`, and return the beginning of the answer if its status is 200 to 299.

    What is not encrypted goes directly to its machine, without a proxy. `certificates` are those of the system if it is
    None.

    Raises:
        NotSentError: it was refused or not answered. The text has what the other side said, but not the address.
    """
    parts = urlsplit(url)
    is_direct = parts.scheme == "http" or is_this_machine(parts.hostname or "")
    proxies = urllib.request.ProxyHandler({} if is_direct else None)
    try:
        # Discord refuses what calls itself urllib.
        named = {"User-Agent": "ai-toolkit-telemetry", **headers}
        request = urllib.request.Request(url, body, named, method="POST")  # noqa: S310 - checked before
        tls = urllib.request.HTTPSHandler(context=certificates)
        opener = urllib.request.build_opener(_NoRedirects, proxies, tls)
        with opener.open(request, timeout=timeout_s) as answer:
            found: bytes = answer.read(LONGEST_ANSWER)
            return found
    except urllib.error.HTTPError as error:
        text = b""
        with error, suppress(OSError, HTTPException):
            text = error.read(LONGEST_ANSWER)
        raise refusal(error.code, text, error.headers.get("Retry-After")) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {error.reason.verify_message}"
            raise NotSentError(why, most_attempts=1) from None
        raise NotSentError(_reason_of(error.reason, timeout_s)) from None
    except (OSError, HTTPException) as error:
        # A request that was sent but got no answer may have arrived: it is sent once more at most.
        raise NotSentError(_reason_of(error, timeout_s), most_attempts=2) from None
    except ValueError:
        # Python's own message would show the header or the proxy, which may have a password.
        why = "the host name, the secret or https_proxy contains characters that it cannot have"
        raise NotSentError(why, most_attempts=1) from None


def refusal(status: int, body: bytes, retry_after: str | None) -> NotSentError:
    """Return the error for a response of another status than 200 to 299."""
    try:
        seconds = float(retry_after or "nan")
    except ValueError:
        seconds = math.nan
    text = cut(one_line(body.decode("utf-8", "replace")), _LONGEST_REASON)
    what = ", a redirect; redirects are not followed" if 300 <= status < 400 else f": {text}" if text else ""
    return NotSentError(
        f"answered {status}{what}",
        status=status,
        most_attempts=MOST_ATTEMPTS if status in _MAY_PASS or status >= 500 else 1,
        retry_after_s=seconds if math.isfinite(seconds) else 0.0,
    )


def _reason_of(error: object, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {timeout_s:.3g} s"
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return cut(one_line(why), _LONGEST_REASON)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Return None: a redirect is a failure, so that a request reaches the configured machine only."""

"""A small OpenID Connect provider, with PKCE and signed ID tokens, that authenticates the user a test chooses."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "dashboard"
CLIENT_SECRET = "secret-of-the-client"


class Provider:
    """The provider, in a thread of this process; `user` holds the claims of the next login."""

    def __init__(self):
        self.user = {}
        self.claims = {}
        """Extra or replaced claims of a token: a wrong audience, the nonce of another login."""

        self.signs_with = self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.visits = []
        self._codes = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                provider._get(self)

            def do_POST(self):
                provider._post(self)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _get(self, request):
        parts = urlsplit(request.path)
        self.visits.append(parts.path)
        if parts.path == "/.well-known/openid-configuration":
            _say(
                request,
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                    "jwks_uri": f"{self.url}/keys",
                    "response_types_supported": ["code"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                    "code_challenge_methods_supported": ["S256"],
                },
            )
        elif parts.path == "/keys":
            _say(request, {"keys": [self.key.as_dict(private=False)]})
        elif parts.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            code = secrets.token_urlsafe(16)
            self._codes[code] = asked
            back = urlencode({"code": code, "state": asked["state"]})
            request.send_response(302)
            request.send_header("Location", f"{asked['redirect_uri']}?{back}")
            request.send_header("Content-Length", "0")
            request.end_headers()
        else:
            request.send_error(404)

    def _post(self, request):
        self.visits.append(request.path)
        form = parse_qs(request.rfile.read(int(request.headers["Content-Length"])).decode())
        asked = self._codes.pop(form["code"][0], None)
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        verifier = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        if (
            asked is None
            or request.headers.get("Authorization") != f"Basic {basic}"
            or asked["code_challenge"] != base64.urlsafe_b64encode(verifier).decode().rstrip("=")
            or asked["redirect_uri"] != form["redirect_uri"][0]
        ):
            _say(request, {"error": "invalid_grant"}, 400)
            return
        claims = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "nonce": asked["nonce"],
            "iat": int(time.time()),
            "exp": int(time.time()) + 600,
            **self.user,
            **self.claims,
        }
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.signs_with)
        _say(
            request, {"access_token": "unused", "token_type": "Bearer", "expires_in": 600, "id_token": token}
        )


def _say(request, content, status=200):
    body = json.dumps(content).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)

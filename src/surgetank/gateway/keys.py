"""API keys: an HMAC-SHA256 digest of each key, the tenant it belongs to, and the key's name.

Rule: a raw key is never stored, logged or put into an error; it is seen once, when it is made. A
key has 192 bits of randomness, so a fast keyed hash is enough: there is nothing to guess that a
slow password hash would protect, and one costs milliseconds of every request.

No cache of keys stands in front of the hash: a dictionary from raw headers to tenants would hold
every live key in memory where a dump shows it, compare raw keys in a time that depends on them, and
outlive a revocation. An open connection alone remembers the header it was last let in by, as long
as it is open and the ring is the same, and compares the next one to it in constant time.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from surgetank.errors import InputError
from surgetank.gateway.spec import AuthSpec

PREFIX: Final = "sk-st-"
_KEY_BYTES: Final = 24  # 32 characters of URL-safe base64
_SECRET_BYTES: Final = 32
_MAX_PRESENTED: Final = 512  # bytes of a presented key that are hashed at most
_SECRET: Final = re.compile(r"(?:[0-9a-fA-F]{2}){32,128}")
_LINE: Final = re.compile(
    r"(?P<tenant>[^\s#]+)[ \t]+hmac-sha256:(?P<digest>[0-9a-f]{64})"
    r"(?:[ \t]+name=(?P<name>[^\s#]+))?"
    r"(?:[ \t]+#[ \t]*(?P<comment>.*))?"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,127}")
_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One line of a keys file. `digest`: 64 hexadecimal digits; `name`: "" without one."""

    tenant: str
    digest: str
    comment: str = ""
    name: str = ""

    @property
    def id(self) -> str:
        """What `keys list` shows and `keys revoke` takes: the digest's first 12 digits."""
        return self.digest[:_ID_DIGITS]

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.name or self.id)

    def to_line(self) -> str:
        name = f" name={self.name}" if self.name else ""
        comment = f"  # {self.comment}" if self.comment else ""
        return f"{self.tenant} hmac-sha256:{self.digest}{name}{comment}\n"


class Owner(NamedTuple):
    """Whose a request is, and by which of its keys: the key's name, else its id."""

    tenant: str
    key: str


class KeyRing:
    """Digest to owner, in memory. Reading the files again means making a new ring."""

    __slots__ = ("_keyed", "_owners")

    def __init__(self, secret: bytes, keys: Iterable[StoredKey]) -> None:
        # The keyed state is prepared once and copied per key: the two blocks of HMAC's padding are
        # hashed only here.
        self._keyed = hmac.new(secret, digestmod=hashlib.sha256)
        self._owners: Mapping[bytes, tuple[bytes, Owner]] = {
            (digest := bytes.fromhex(key.digest)): (digest, key.owner) for key in keys
        }

    @classmethod
    def load(cls, spec: AuthSpec, environ: Mapping[str, str]) -> KeyRing | None:
        """Read the files of `spec`; None when no keys file is set.

        Raises InputError when a file is missing, readable by others or malformed, or when there is
        no secret.
        """
        if spec.keys_file is None:
            return None
        return cls(read_secret(spec, environ), read_keys(Path(spec.keys_file)))

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def tenants(self) -> frozenset[str]:
        return frozenset(owner.tenant for owner in self.owners)

    @property
    def owners(self) -> frozenset[Owner]:
        return frozenset(owner for _, owner in self._owners.values())

    def tenant(self, key: bytes) -> str | None:
        """Return the tenant of a presented key (without "Bearer "), None when nobody has it."""
        owner = self.owner(key)
        return None if owner is None else owner.tenant

    def owner(self, key: bytes) -> Owner | None:
        """Return the tenant and the name of a presented key, None when nobody has it.

        What a caller can time is a lookup by the digest of what it sent, which it cannot steer
        without the secret; the match is then confirmed in constant time.
        """
        if not 0 < len(key) <= _MAX_PRESENTED:
            return None
        keyed = self._keyed.copy()
        keyed.update(key)
        digest = keyed.digest()
        stored, owner = self._owners.get(digest, _NOBODY)
        return owner if hmac.compare_digest(stored, digest) and owner.tenant else None

    def authenticate(self, authorization: bytes | None) -> Owner | None:
        """Return the owner of an Authorization header; the scheme is Bearer in any case."""
        if authorization is None or authorization[:7].lower() != b"bearer ":
            return None
        return self.owner(authorization[7:].strip())


_NOBODY: Final = (bytes(32), Owner("", ""))


def digest_of(key: str, secret: bytes) -> str:
    """Compute the digest under which a key is stored."""
    return hmac.new(secret, key.encode(), hashlib.sha256).hexdigest()


def new_key() -> str:
    """Make a fresh key: `sk-st-` and 32 URL-safe characters (192 random bits)."""
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


# Files.


def read_secret(spec: AuthSpec, environ: Mapping[str, str]) -> bytes:
    """Read the secret, from its file when one is named, else from the environment."""
    if spec.hmac_secret_file is not None:
        return _secret(read_private(Path(spec.hmac_secret_file)), spec.hmac_secret_file)
    value = environ.get(spec.hmac_secret_env)
    if not value:
        raise InputError(
            f"API keys need their secret: set auth.hmac_secret_file, or the environment variable "
            f"{spec.hmac_secret_env}"
        )
    return _secret(value, f"environment variable {spec.hmac_secret_env}")


def make_secret(path: Path) -> None:
    """Write a new secret with mode 0600; an existing file is never replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(_SECRET_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_keys(path: Path) -> tuple[StoredKey, ...]:
    """Read the keys of a file in its order; blank lines and comment lines are skipped."""
    return _parse_keys(path, read_private(path))


def _parse_keys(path: Path, text: str) -> tuple[StoredKey, ...]:
    keys: dict[str, StoredKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            # The line is not shown: somebody may have put a raw key there.
            raise InputError(
                f"{path}, line {number}: expected TENANT hmac-sha256:64_HEX_DIGITS [name=NAME]"
            )
        if match["digest"] in keys:
            raise InputError(f"{path}, line {number}: this key stands in the file twice")
        comment, name = (match["comment"] or "").strip(), match["name"] or ""
        key = StoredKey(match["tenant"], match["digest"], comment, name)
        keys[key.digest] = key
    return tuple(keys.values())


def add_key(
    path: Path, tenant: str, key: str, secret: bytes, *, comment: str = "", name: str = ""
) -> StoredKey:
    """Append the key's digest; the file is replaced as a whole, so a reader sees old or new.

    Raises InputError for a file that a gateway would refuse: the key would be of no use.
    """
    for what, word in (("tenant", tenant), ("name", name or "unnamed")):
        if _NAME.fullmatch(word) is None:
            raise InputError(
                f"{what} {word!r}: use letters, digits and . _ @ : / - (128 at most, a letter or "
                f"digit first)"
            )
    if name.startswith(PREFIX):
        raise InputError("name: is an API key: give the key a name of your own")
    if not comment.isprintable():
        raise InputError("comment: must be one line of printable text")
    stored = StoredKey(tenant, digest_of(key, secret), comment.strip(), name)
    with _locked(path):
        text = ""
        if path.exists():
            text = read_private(path)
            _parse_keys(path, text)
        if text and not text.endswith("\n"):
            text += "\n"
        _replace(path, text + stored.to_line())
    return stored


def revoke_key(path: Path, key_id: str) -> StoredKey:
    """Take out the one key whose digest begins with `key_id`; comments and order stay."""
    with _locked(path):
        found = [key for key in read_keys(path) if key_id and key.digest.startswith(key_id)]
        if len(found) != 1:
            what = "no key's id begins" if not found else f"the ids of {len(found)} keys begin"
            raise InputError(f"{path}: {what} with {key_id!r}; see 'surgetank keys list'")
        lines = read_private(path).splitlines(keepends=True)
        _replace(path, "".join(line for line in lines if found[0].digest not in line))
    return found[0]


def _secret(text: str, source: str) -> bytes:
    digits = text.strip()
    if _SECRET.fullmatch(digits) is None:
        raise InputError(
            f"{source}: must be 64 to 256 hexadecimal digits, as 'surgetank keys new' or "
            f"'openssl rand -hex 32' makes them"
        )
    return bytes.fromhex(digits)


def read_private(path: Path) -> str:
    """Read the text of a file that only its owner may read.

    Mode and owner are those of the opened file, so a swap between look and read changes nothing.
    A credential of a service manager may be root's with an access list for this user, which shows
    in its mode as the group's right to read.
    """
    allowed = 0o740 if _is_credential(path) else 0o700
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path}: is not a regular file")
            if status.st_uid not in {os.geteuid(), 0}:
                raise InputError(
                    f"{path}: belongs to user {status.st_uid}: must belong to user {os.geteuid()}, "
                    f"who runs this, or to root"
                )
            if mode := stat.S_IMODE(status.st_mode) & 0o077 & ~allowed:
                raise InputError(
                    f"{path}: others may access it (mode {stat.S_IMODE(status.st_mode):04o}, "
                    f"{mode:03o} too many): run chmod 600 {path}"
                )
            return file.read().decode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a FIFO waits for who writes to it


def _is_credential(path: Path) -> bool:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")  # systemd's; see LoadCredential=
    return bool(folder) and path.resolve().parent == Path(folder or "/").resolve()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock: two commands at once must not lose one another's key."""
    try:
        descriptor = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"{path}: its folder cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Write the whole file anew beside the old one (mode 0600), then rename it into place."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no file: keys cannot be kept in it")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

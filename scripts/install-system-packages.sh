#!/bin/sh
# Installs the system packages that some tests need. Idempotent, asks nothing, and safe to run anywhere.
#
#     scripts/install-system-packages.sh
#
# | command  | Debian package | what needs it                                                    |
# |----------|----------------|------------------------------------------------------------------|
# | chromium | chromium       | tests marked `browser`: they look at the Prefect page as people do |
#
# fonts-liberation comes along: without any font chromium draws empty boxes, and text has no size.
# Where a package is missing and cannot be installed (no apt-get, not root), this says so and succeeds:
# the tests that need it skip with their reason. It fails only when apt-get itself fails.
set -eu

say() { echo "system packages: $*"; }

if command -v chromium >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    say "chromium is missing and there is no apt-get here; tests marked 'browser' will skip"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    say "chromium is missing and installing it needs root; tests marked 'browser' will skip"
    say "to run them: sudo scripts/install-system-packages.sh"
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "installing chromium: about a minute the first time"
if ! {
    apt-get update -q &&
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-liberation
} >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    say "apt-get failed (its last lines stand above)" >&2
    exit 1
fi
say "installed"

#!/bin/sh
# Installs the system packages that some tests need. Idempotent, asks nothing, and safe to run anywhere.
#
#     scripts/install-system-packages.sh
#
# | command      | Debian packages            | what needs it                                                       |
# |--------------|----------------------------|---------------------------------------------------------------------|
# | chromium     | chromium, fonts-liberation | tests marked `browser`: they look at the Prefect page as people do    |
# | postgres     | postgresql                 | tests of a team's server (docs/team-server.md); they start their own |
# | redis-server | redis-server               | the same                                                            |
#
# Without any font chromium draws empty boxes, and text has no size.
# Where a package is missing and cannot be installed (no apt-get, not root), this says so and succeeds:
# the tests that need it skip with their reason. It fails only when apt-get itself fails.
# Nothing that is installed here is started: a policy file keeps Debian from doing so.
set -eu

say() { echo "system packages: $*"; }

missing=''
command -v chromium >/dev/null 2>&1 || missing="$missing chromium fonts-liberation"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
if [ -z "$missing" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    say "missing:$missing; there is no apt-get here, and the tests that need them will skip"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    say "missing:$missing; installing them needs root, and the tests that need them will skip"
    say "to run them: sudo scripts/install-system-packages.sh"
    exit 0
fi

log=$(mktemp)
policy=/usr/sbin/policy-rc.d
made_policy=''
finish() {
    rm -f "$log"
    if [ -n "$made_policy" ]; then rm -f "$policy"; fi
}
trap finish EXIT
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    made_policy=yes
fi
say "installing$missing: about a minute the first time"
# shellcheck disable=SC2086  # the list is meant to be split
if ! {
    apt-get update -q &&
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
} >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    say "apt-get failed (its last lines stand above)" >&2
    exit 1
fi
say "installed"

#!/bin/sh
# Builds the images, starts the stack with two workers, chats, loses a worker, chats again, and removes the stack.
#
# Where no engine runs it starts one of its own, in a scratch folder, if it is root on Debian with docker.io, iptables
# and debootstrap installed. That engine reaches no image registry: Debian stands in for the base images.
# DEBIAN_MIRROR may name the mirror.
set -eu
cd "$(dirname "$0")/../.."

PROJECT=augury-check
FILES="-f docker-compose.yml"
SCRATCH=$(mktemp -d)
COMPOSE=""
ENGINE=""

main() {
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    find_compose || skip "neither docker compose nor docker-compose is installed"
    docker info >/dev/null 2>&1 || start_engine
    compose build
    export AUGURY_PORT=0 AUGURY_WORKER__THREADS=1 AUGURY_KV__MEMORY_MB=256
    compose up --detach --wait --wait-timeout 300 --scale worker=2 || fail "the stack did not become healthy"
    chat
    docker kill "$(compose ps --quiet worker | head -n 1)"
    chat
    echo "up-test: passed"
}

chat() {
    answer=$(curl --fail --silent --show-error --max-time 120 \
        "http://$(compose port gateway 8000)/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20}') || fail "no answer"
    echo "$answer"
    echo "$answer" | grep -q '"content":"[^"]' || fail "an answer without text"
}

find_compose() {
    if docker compose version >/dev/null 2>&1; then
        COMPOSE="docker compose"
    elif docker-compose version >/dev/null 2>&1; then
        COMPOSE="docker-compose"
    else
        return 1
    fi
}

compose() {
    # shellcheck disable=SC2086
    $COMPOSE --project-name "$PROJECT" $FILES "$@"
}

start_engine() {
    [ "$(id -u)" = 0 ] || skip "no engine runs, and only root can start one"
    for program in dockerd debootstrap iptables; do
        command -v "$program" >/dev/null || skip "no engine runs, and $program is not installed"
    done
    export DOCKER_HOST="unix://$SCRATCH/docker.sock" DOCKER_BUILDKIT=0
    # Without NAT there is no way out of a bridge; builds use the host's network.
    dockerd --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none \
        --storage-driver=overlay2 --data-root "$SCRATCH/data" --exec-root "$SCRATCH/exec" --pidfile "$SCRATCH/pid" \
        --default-ulimit nofile=20000:20000 --host "$DOCKER_HOST" >"$SCRATCH/log" 2>&1 &
    ENGINE=$!
    for _ in $(seq 30); do
        docker info >/dev/null 2>&1 && break
        kill -0 "$ENGINE" 2>/dev/null || skip "no engine can start here: $(tail -n 1 "$SCRATCH/log")"
        sleep 1
    done
    make_bases
    build_on_host_network
}

# Debian with Python and Redis, under the names that the files ask for. Certificates, and torch, are this machine's:
# its pip may know a build without CUDA.
make_bases() {
    base=$SCRATCH/base
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,redis-server \
        bookworm "$base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$SCRATCH/debootstrap.log"
    cp /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"
    ln -s /usr/bin/python3 "$base/usr/local/bin/python"
    rm -r "$base"/usr/lib/python3*/EXTERNALLY-MANAGED "$base"/var/cache/apt/archives
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version=3.11 --dest "$base/usr/src/wheels" \
        "$(grep -o 'torch==[0-9.]*' pyproject.toml)"
    printf '[global]\nfind-links = /usr/src/wheels\n' >"$base/etc/pip.conf"
    python=$(sed -n 's/^FROM //p' deploy/docker/Dockerfile)
    tar -C "$base" -c . | docker import - "$python"
    docker tag "$python" "$(sed -n 's/^ *image: \(redis:.*\)/\1/p' docker-compose.yml)"
    rm -r "$base"
}

build_on_host_network() {
    echo "services:" >"$SCRATCH/host-network.yml"
    for service in kvcache scheduler worker gateway; do
        echo "  $service: {build: {network: host}}" >>"$SCRATCH/host-network.yml"
    done
    FILES="$FILES -f $SCRATCH/host-network.yml"
}

clean_up() {
    status=$?
    [ -z "$COMPOSE" ] || compose down --volumes >/dev/null 2>&1 || true
    if [ -n "$ENGINE" ]; then
        kill "$ENGINE" 2>/dev/null && wait "$ENGINE" || true
        # What the engine leaves mounted behind it.
        umount "$SCRATCH"/exec/netns/* 2>/dev/null || true
    fi
    rm -rf "$SCRATCH"
    exit "$status"
}

skip() {
    echo "up-test: skipped: $1"
    exit 0
}

fail() {
    echo "up-test: failed: $1" >&2
    compose ps --all >&2
    compose logs --tail 50 >&2
    exit 1
}

main

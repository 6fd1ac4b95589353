#!/bin/sh
# Proves the images and compose.yaml with a real engine: build, up, an answer streamed from the
# host, two workers, one of them killed in the middle of an answer, down.
#
#   deploy/smoke.sh            needs docker, compose, and an installed signalbox (make install)
#
# BUILD_NETWORK, TORCH_INDEX, MODEL and ROUTER_ADDRESS are those of compose.yaml; BUILD=no takes the
# images that are there.
set -eu
cd "$(dirname "$0")/.."

PROJECT=signalbox-smoke
: "${ROUTER_ADDRESS:=127.0.0.1:50051}"
export ROUTER_ADDRESS
: "${SIGNALBOX_NUM_THREADS:=1}" # of each worker: two that want every core slow each other down
export SIGNALBOX_NUM_THREADS
PATH=$PWD/.venv/bin:$PATH
scratch=$(mktemp -d)

compose() {
    if docker compose version >/dev/null 2>&1; then set -- docker compose "$@"
    else set -- docker-compose "$@"; fi
    "$@"
}
stack() { compose --project-name "$PROJECT" --file deploy/compose.yaml "$@"; }
say() { echo "== $*"; }
fail() {
    echo "FAILED: $*" >&2
    stack logs --tail 30 >&2
    exit 1
}
finish() {
    stack down --volumes --timeout 10 >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 1' INT TERM

ask() { # PROMPT FLAG...: the answer as JSON
    signalbox chat "$@" --json --router "$ROUTER_ADDRESS" --temperature 0 --timeout 300 </dev/null
}
text() { # FILE: the text of a JSON answer
    python -c 'import json, sys; print(json.load(open(sys.argv[1]))["outputs"][0]["text"])' "$1"
}
num_workers() { stack logs scheduler | grep -c "worker joined" || true; }
until_workers() { # NUMBER: waits until so many have ever joined
    for _ in $(seq 120); do
        [ "$(num_workers)" -ge "$1" ] && return
        sleep 1
    done
    fail "$(num_workers) workers have joined, not $1"
}

if [ "${BUILD:-yes}" = yes ]; then
    say "building"
    stack build
fi
[ -f models/SmolLM2-135M-Instruct.Q4_1.gguf ] || make model

say "no PyTorch and no kernels in router and scheduler, no root in any"
for image in router scheduler gpu-worker; do
    user=$(docker run --rm --entrypoint id "signalbox-$image" -un)
    [ "$user" = signalbox ] || fail "$image runs as $user"
done
for image in router scheduler; do
    docker run --rm --entrypoint python "signalbox-$image" -c \
        'import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ("torch", "signalbox_kernels"))))' \
        || fail "$image carries PyTorch or kernels"
done

say "up"
stack up --detach --no-build
signalbox health --address "$ROUTER_ADDRESS" --wait 120 || fail "not serving"

say "an answer through all three"
ask "What is the capital of South Korea?" --max-tokens 32 >"$scratch/one" || fail "no answer"
text "$scratch/one"
text "$scratch/one" | grep -q Seoul || fail "the answer is not Seoul"

say "metrics of all three"
for service in router scheduler gpu-worker; do
    stack exec -T "$service" python -c \
        'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9464/metrics").read().decode())' \
        >"$scratch/metrics" || fail "$service shows no metrics"
    grep -q "^signalbox_" "$scratch/metrics" || fail "$service shows no metrics of its own"
done

say "two workers"
until_workers 1
stack up --detach --no-build --scale gpu-worker=2
until_workers 2
for _ in $(seq 180); do
    healthy=$(docker ps -q --filter "label=com.docker.compose.project=$PROJECT" \
        --filter health=healthy | wc -l)
    [ "$healthy" = 4 ] && break
    sleep 1
done
[ "$healthy" = 4 ] || fail "$healthy of 4 containers are healthy"
ask "Tell me a story." --max-tokens 60 --ignore-eos >"$scratch/expected" || fail "no story"

say "one of them is killed while both work"
for i in 1 2 3 4; do
    ask "Tell me a story." --max-tokens 60 --ignore-eos >"$scratch/story$i" 2>"$scratch/error$i" &
    echo $! >>"$scratch/pids"
done
sleep 1
docker kill "$(stack ps -q gpu-worker | head -n 1)" >/dev/null
while read -r pid; do
    wait "$pid" || fail "a story was lost: $(cat "$scratch"/error*)"
done <"$scratch/pids"
for i in 1 2 3 4; do
    [ "$(text "$scratch/story$i")" = "$(text "$scratch/expected")" ] || fail "story $i differs"
done
ask "What is the capital of South Korea?" --max-tokens 32 >"$scratch/two" || fail "no answer after it"
text "$scratch/two" | grep -q Seoul || fail "the answer after it is not Seoul"

say "down"
stack stop --timeout 40
for container in $(stack ps -q router scheduler); do
    status=$(docker inspect --format '{{.State.ExitCode}}' "$container")
    [ "$status" = 0 ] || fail "a drained service exited with status $status"
done
stack down --volumes
[ -z "$(docker ps -aq --filter "label=com.docker.compose.project=$PROJECT")" ] || fail "left over"
say "all of it works"

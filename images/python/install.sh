#!/bin/sh
# Runs as root in a box of the base image without a network; /workspace has debs/, wheels/,
# packages.txt and requirements.txt. What it changes becomes the layer, so nothing in it may depend on the clock.
set -eu
export DEBIAN_FRONTEND=noninteractive PYTHONHASHSEED=0 SOURCE_DATE_EPOCH="$1"
cd /workspace

echo "installing $(ls debs | wc -l) Debian packages"
# apt knows the order that pre-dependencies ask for, and needs nothing but these files.
apt-get -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io install ./debs/*.deb
apt-mark auto $(dpkg-deb --show --showformat '${Package} ' debs/*.deb) >/dev/null
apt-mark manual $(cat packages.txt) >/dev/null
ln -sf python3 /usr/bin/python
# pip installs for the whole box as root, and into ~/.local as the session user; nothing else does.
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED

echo "installing $(ls wheels | wc -l) wheels"
python3 "$(echo wheels/pip-*.whl)/pip" install --no-index --find-links wheels --require-hashes \
    --no-compile --no-cache-dir --root-user-action ignore --no-warn-script-location \
    --disable-pip-version-check --requirement requirements.txt

echo "compiling"
# A compiled file holds its source's time: a fixed one first, and an edited source is still noticed.
unset SOURCE_DATE_EPOCH
find /usr/lib/python3* /usr/local/lib/python3* -name __pycache__ -prune -exec rm -rf {} +
find /usr/lib/python3* /usr/local/lib/python3* -name '*.py' -exec touch -h -d "@$1" {} +
python3 -m compileall -q -j 0 --invalidation-mode timestamp \
    /usr/lib/python3 /usr/lib/python3.13 /usr/local/lib/python3.13 >/dev/null || true

# Logs, backups and caches.
find /var/log -type f -delete
rm -rf /var/log/apt /var/cache/ldconfig/* /var/cache/apt/* /root/.cache /tmp/* /var/tmp/*
rm -f /var/lib/dpkg/*-old /var/cache/debconf/*-old /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
MPLCONFIGDIR=/tmp PYTHONDONTWRITEBYTECODE=1 python3 -c 'import bs4, httpx, matplotlib, numpy, pandas, requests'

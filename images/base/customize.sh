#!/bin/sh
# Runs at the end of mmdebstrap, outside of the tree $1: what a host or a clock left in it goes.
set -eu
cd "$1"

# The host's names and resolver; Sandkasten's own layer brings hosts and hostname.
rm -f etc/resolv.conf etc/hostname etc/hosts
: >etc/machine-id
# apt as on any Debian, without what this build told it (proxies, for one). A mirror's password stays out.
rm -f etc/apt/apt.conf.d/99mmdebstrap
echo 'Acquire::Languages "none";' >etc/apt/apt.conf.d/90sandkasten
sed -i 's|//[^/@ ]*@|//|' etc/apt/sources.list
mv etc/dpkg/dpkg.cfg.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/90sandkasten
# Scripts of some packages expect these, though their pages are left out.
for n in 1 2 3 4 5 6 7 8; do mkdir -p usr/share/man/man$n; done
# Logs, backups and caches.
find var/log -type f -delete
rm -rf var/log/apt var/cache/ldconfig/* var/cache/apt/archives/*.deb
rm -f var/lib/dpkg/*-old var/cache/debconf/*-old
rm -f etc/passwd- etc/group- etc/shadow- etc/gshadow- etc/subuid- etc/subgid-

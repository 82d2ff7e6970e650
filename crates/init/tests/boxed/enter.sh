# Builds a small root in private namespaces and becomes init in it, as jail does with other means.
# Arguments: the root's mount point, the kind of root, the init binary, and the descriptors of the
# listener, the configuration and the spool.
set -e
root=$1 kind=$2 init=$3
exec 3<&"$4" 4<&"$5" 5<&"$6" 2>"$root.log"

mount -t tmpfs -o mode=755 none "$root"
cd "$root"
mkdir -p dev etc home/sandbox proc root tmp run usr workspace .sandkasten
case $kind in
debian)
    mount --rbind /usr usr
    ln -s usr/bin usr/sbin usr/lib usr/lib64 .
    ;;
busybox | bare)
    # The test's init is linked dynamically; nothing else here uses these.
    mkdir -p bin lib lib64
    mount --bind /usr/lib lib
    mount --bind /usr/lib64 lib64
    if [ "$kind" = busybox ]; then
        cp "$(command -v busybox)" bin/busybox
        chroot . /bin/busybox --install -s /bin
    fi
    ;;
esac
cp "$init" init
chmod 0111 init
printf 'root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n' >etc/passwd
printf 'root:x:0:\ntty:x:5:\nsandbox:x:1000:\n' >etc/group

mount -t tmpfs -o mode=1777 none tmp
mount -t tmpfs -o mode=1777 none run
mount -t tmpfs -o mode=755,uid=1000,gid=1000 none workspace
mount -t tmpfs -o mode=711,uid=65000,gid=65000,size=8m,nr_inodes=4096 none .sandkasten
mount -t proc none proc
for node in null zero full random urandom tty; do
    touch dev/$node
    mount --bind /dev/$node dev/$node
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 none dev/pts
mount -t tmpfs -o mode=1777 none dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
chown 1000:1000 home/sandbox

caps=+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service
caps=$caps,+sys_chroot,+setfcap
exec env -i setpriv --ruid 65001 --euid 65000 --rgid 65001 --egid 65000 \
    --clear-groups --bounding-set=-all,$caps --inh-caps=-all,$caps --ambient-caps=-all,$caps \
    --no-new-privs "$(command -v chroot)" "$root" /init 2>/dev/null

# The first process of a machine made of namespaces: it builds the machine's view and becomes its systemd.
# DIR is the machine's directory, DISK the image that it starts from, KERNEL the kernel's files that kubeadm wants to see.
set -euo pipefail
cd "$DIR"
hostname "$NAME"
# What is mounted here is seen by this machine alone and goes with it.
mount -o loop,ro "$DISK" lower
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root
cgroups=$(awk '$3 == "cgroup" || $3 == "cgroup2" {print $2 " " $3 " " $4}' /proc/self/mounts)
cd root
mkdir -p .old boot payload var/lib/containerd
mount --bind "$DIR/containerd" var/lib/containerd # an overlay cannot lie on an overlay
mount --bind "$PAYLOAD" payload
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
# A /dev of its own: systemd would make links and change owners in this machine's.
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm dev/net
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
for n in null zero full random urandom tty kmsg fuse net/tun; do
  if [ -e "/dev/$n" ]; then touch "dev/$n" && mount --bind "/dev/$n" "dev/$n"; fi
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "dev/${n#*:}"; done
case $cgroups in *" cgroup "*) mount -t tmpfs tmpfs sys/fs/cgroup;; esac
while read -r at type options; do
  mkdir -p ".$at"
  options=$(tr , '\n' <<<"$options" | grep -vE '^(rw|relatime|nosuid|nodev|noexec|nsdelegate|memory_recursiveprot)$' | paste -sd,) || true
  [[ $options == name=* ]] && options=none,$options
  mount -t "$type" ${options:+-o "$options"} cgroup ".$at"
done <<<"$cgroups"
echo "$NAME" > etc/hostname
echo "127.0.0.1 localhost $NAME" > etc/hosts
# The address and the way out; there are no kernel modules to load.
rm -f etc/systemd/system/multi-user.target.wants/vmctl.service
mkdir -p etc/systemd/system/lab-net.service.d etc/systemd/system/containerd.service.d
printf '[Service]\nExecStart=\nExecStart=/bin/sh -c "ip link set lo up; sysctl -qw net.ipv4.ip_forward=1"\n' > etc/systemd/system/lab-net.service.d/ns.conf
# Without CAP_SYS_RESOURCE, as in many virtual machines, a sandbox could not lower its oom_score_adj.
grep -q restrict_oom etc/containerd/config.toml ||
  sed -i "s#^\[plugins.'io.containerd.cri.v1.runtime'.cni\]#[plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = true\n&#" etc/containerd/config.toml
pivot_root . .old
umount -l /.old
mount --make-rshared /
exec env -i container=ns PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd

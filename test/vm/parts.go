package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/test/testbed"
)

// debian is what must be installed here to build and run the machine: a program and its package.
var debian = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs",
	"cpio": "cpio", "dpkg-deb": "dpkg", "busybox": "busybox-static",
}

// insideStorage is what a machine to prove volumes in has besides: both ends of iSCSI and of NFS.
const insideStorage = ",udev,e2fsprogs,open-iscsi,tgt,nfs-kernel-server,nfs-common"

// insideFleet is what the machines of an operator have besides: a way to reach each other, and Ansible. debootstrap
// does not find cffi by itself, because Ansible depends on it by a virtual package.
const insideFleet = ",openssh-server,openssh-client,ansible-core,python3-cffi-backend"

// insideDebian is what the machine has installed.
const insideDebian = "systemd,systemd-sysv,dbus,iproute2,iptables,kmod,procps,libseccomp2"

// modules are what the initial ram disk inserts, in this order, to see the disk.
var modules = []string{
	"virtio/virtio_ring",
	"virtio/virtio",
	"virtio/virtio_pci_legacy_dev",
	"virtio/virtio_pci_modern_dev",
	"virtio/virtio_pci",
	"block/virtio_blk",
}

const initScript = `#!/bin/sh
/bin/busybox mount -t devtmpfs dev /dev
for m in %s; do /bin/busybox insmod /$m.ko 2>/dev/null; done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /lib/systemd/systemd
`

// insideUML is what a machine of User-Mode Linux has besides: what a testbed needs that runs in it.
const insideUML = ",nftables,e2fsprogs,ca-certificates,curl,iputils-ping,conntrack,util-linux,libglib2.0-0,uidmap,crun"

// diskSize is enough for the images of the test suite. The file is sparse.
const diskSize = "16G"

// debianUML is what must be installed here to build and run a machine of User-Mode Linux.
var debianUML = map[string]string{
	"debootstrap": "debootstrap",
	"mke2fs":      "e2fsprogs",
	"dpkg-deb":    "dpkg",
	"ethtool":     "ethtool",
	"gcc":         "gcc",
	"make":        "make",
	"flex":        "flex",
	"bison":       "bison",
	"bc":          "bc",
	"xz":          "xz-utils",
}

// parts are the files that machines start from, kept outside of the tree.
type parts struct {
	dir, disk, kernel, initrd string
	kind                      string // of disk: "", "storage" with what volumes need, "fleet" with Ansible, or "uml"
}

func run(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// getParts builds what is missing of the parts of qemu's machine.
func getParts(ctx context.Context, kind string) (*parts, error) {
	p, err := newParts(ctx, kind, debian)
	if err != nil {
		return nil, err
	}
	p.kernel, p.initrd = filepath.Join(p.dir, "vmlinuz"), filepath.Join(p.dir, "initrd")
	for _, build := range []struct {
		file string
		make func(context.Context) error
	}{{p.kernel, p.makeKernel}, {p.initrd, p.makeInitrd}, {p.disk, p.makeDisk}} {
		if err := buildOnce(ctx, build.file, build.make); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// getUMLParts builds what is missing of the parts of a machine of User-Mode Linux.
func getUMLParts(ctx context.Context) (*parts, error) {
	p, err := newParts(ctx, "uml", debianUML)
	if err != nil {
		return nil, err
	}
	if p.kernel, err = umlKernel(ctx, p.dir); err != nil {
		return nil, err
	}
	return p, buildOnce(ctx, p.disk, p.makeDisk)
}

func newParts(ctx context.Context, kind string, needs map[string]string) (*parts, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	p := &parts{dir: filepath.Join(cache, "nodelet-vm"), kind: kind}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, err
	}
	if err := testbed.InstallDebian(ctx, os.Stdout, needs); err != nil {
		return nil, err
	}
	sum, err := p.diskSum(ctx)
	p.disk = filepath.Join(p.dir, "disk-"+p.prefix()+sum+".img")
	return p, err
}

// diskSum is a hash of all that chooses the disk's content. The directories of programs carry their versions.
func (p *parts) diskSum(ctx context.Context) (string, error) {
	all, err := programs(ctx)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprint(h, p.packages(), diskSize, furnishScript, furnishUML)
	for _, into := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintln(h, into, all[into])
	}
	for _, name := range slices.Sorted(maps.Keys(filesInside)) {
		text, err := guest.ReadFile("guest/" + name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %s\n", name, text)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

// packages are what the machine has installed, as debootstrap takes them.
func (p *parts) packages() string {
	return insideDebian + map[string]string{"storage": insideStorage, "fleet": insideFleet, "uml": insideUML}[p.kind]
}

// buildOnce builds a file of the cache unless it is there. Several runs share the cache: one builds, the others wait.
// No build may call it.
func buildOnce(ctx context.Context, file string, build func(context.Context) error) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	unlock, err := testbed.Lock(ctx, dir, func() { fmt.Println("another run builds a part, waiting:", file) })
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return nil // meanwhile
	}
	fmt.Println("building", file)
	return build(ctx)
}

// prefix distinguishes the files of one kind of disk from those of another.
func (p *parts) prefix() string {
	if p.kind == "" {
		return ""
	}
	return p.kind + "-"
}

func (p *parts) modulesDir() (string, error) {
	all, err := filepath.Glob(filepath.Join(p.dir, "kernel/lib/modules/*"))
	if err != nil || len(all) != 1 {
		return "", fmt.Errorf("find the kernel's modules below %s: %v, error %v", p.dir, all, err)
	}
	return all[0], nil
}

// makeKernel unpacks Debian's newest kernel for virtual machines.
func (p *parts) makeKernel(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "apt-cache", "search", "--names-only", `^linux-image-6\.1\.[0-9-]*-cloud-amd64$`).
		Output()
	if err != nil {
		return err
	}
	names := strings.Fields(string(out))
	newest := ""
	for _, n := range names {
		if strings.HasPrefix(n, "linux-image-") {
			newest = n
		}
	}
	if newest == "" {
		return errors.New("apt knows no kernel linux-image-6.1…-cloud-amd64: run apt-get update")
	}
	work, err := os.MkdirTemp(p.dir, "kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := run(ctx, work, "apt-get", "download", newest); err != nil {
		return err
	}
	debs, _ := filepath.Glob(filepath.Join(work, "*.deb"))
	if len(debs) != 1 {
		return fmt.Errorf("downloaded %v", debs)
	}
	into := filepath.Join(p.dir, "kernel")
	if err := errors.Join(os.RemoveAll(into), run(ctx, "", "dpkg-deb", "-x", debs[0], into)); err != nil {
		return err
	}
	images, _ := filepath.Glob(filepath.Join(into, "boot/vmlinuz-*"))
	if len(images) != 1 {
		return fmt.Errorf("kernels: %v", images)
	}
	return run(ctx, "", "cp", images[0], p.kernel)
}

func (p *parts) makeInitrd(ctx context.Context) error {
	from, err := p.modulesDir()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(p.dir, "initrd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, d := range []string{"bin", "dev", "root", "proc"} {
		if err := os.Mkdir(filepath.Join(work, d), 0o755); err != nil {
			return err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := run(ctx, "", "cp", busybox, filepath.Join(work, "bin/busybox")); err != nil {
		return err
	}
	var names []string
	for _, m := range modules {
		names = append(names, filepath.Base(m))
		if err := run(ctx, "", "cp", filepath.Join(from, "kernel/drivers", m+".ko"), work); err != nil &&
			m != "virtio/virtio_ring" &&
			m != "virtio/virtio" {
			return err // the first two are part of some kernels
		}
	}
	script := fmt.Appendf(nil, initScript, strings.Join(names, " "))
	if err := os.WriteFile(filepath.Join(work, "init"), script, 0o755); err != nil {
		return err
	}
	return run(ctx, work, "sh", "-c", fmt.Sprintf("ln -s busybox bin/sh && "+
		"find . | cpio -o -H newc --quiet | gzip -1 > %[1]s.new && mv %[1]s.new %[1]s", p.initrd))
}

// makeDisk builds Debian with a runtime, as a file system.
func (p *parts) makeDisk(ctx context.Context) error {
	include := p.packages()
	sum := sha256.Sum256([]byte(include))
	base := filepath.Join(p.dir, fmt.Sprintf("debian-%x", sum[:6]))
	if _, err := os.Stat(filepath.Join(base, "lib/systemd/systemd")); err != nil {
		if err := os.RemoveAll(base); err != nil {
			return err
		}
		if err := run(ctx, "", "debootstrap", "--variant=minbase", "--include="+include, "bookworm", base); err != nil {
			return err
		}
	}
	root, err := os.MkdirTemp(p.dir, "root-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	if err := run(ctx, "", "cp", "-a", base+"/.", root); err != nil {
		return err
	}
	if err := p.furnish(ctx, root); err != nil {
		return err
	}
	return makeFileSystem(ctx, root, p.disk)
}

// makeFileSystem makes a disk with the files of a directory.
func makeFileSystem(ctx context.Context, root, disk string) error {
	next := disk + ".new"
	_ = os.Remove(next)
	if err := run(ctx, "", "mke2fs", "-q", "-t", "ext4", "-d", root, next, diskSize); err != nil {
		return err
	}
	return os.Rename(next, disk)
}

// programsInside are the directories of the machine and the modules whose programs go there.
var programsInside = map[string][]string{
	"usr/local/bin": {"containerd", "runc", "cri-tools"},
	"opt/cni/bin":   {"cni"},
}

// programs returns the directories of built programs by the machine's directory that gets them.
func programs(ctx context.Context) (map[string][]string, error) {
	cache, err := testbed.OpenCache(os.Stdout)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for into, modules := range programsInside {
		for _, module := range modules {
			var names []string // all
			if module == "cri-tools" {
				names = []string{"crictl"}
			}
			dir, err := cache.Programs(ctx, module, names...)
			if err != nil {
				return nil, err
			}
			all[into] = append(all[into], dir)
		}
	}
	return all, nil
}

// furnishScript runs in the root of the machine's file system, after its files are there.
const furnishScript = `set -e
mkdir -p etc/kubernetes/manifests payload host var/log/journal
echo vm > etc/hostname; echo 127.0.0.1 localhost vm > etc/hosts; : > etc/fstab; : > etc/machine-id
rm -f etc/resolv.conf; echo nameserver 192.0.2.53 > etc/resolv.conf
chroot . passwd -q -d root
for u in lab-net cpuinfo containerd vmctl; do
  ln -sf /etc/systemd/system/$u.service etc/systemd/system/multi-user.target.wants/$u.service
done
ln -sf /dev/null etc/systemd/system/systemd-networkd-wait-online.service
`

// furnishUML masks what a machine of User-Mode Linux has no use for: consoles, and timers that would run at its boot.
const furnishUML = `
for u in getty.target apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    systemd-timesyncd.service e2scrub_reap.service nftables.service; do
  ln -sf /dev/null etc/systemd/system/$u
done
`

func (p *parts) furnish(ctx context.Context, root string) error {
	all, err := programs(ctx)
	if err != nil {
		return err
	}
	for into, dirs := range all {
		for _, dir := range dirs {
			if err := run(ctx, root, "sh", "-c", fmt.Sprintf("mkdir -p %s && cp %s/* %[1]s/", into, dir)); err != nil {
				return err
			}
		}
	}
	if err := p.guestFiles(root); err != nil {
		return err
	}
	if p.kind == "uml" { // its kernel has everything built in
		return run(ctx, root, "sh", "-c", furnishScript+furnishUML)
	}
	from, err := p.modulesDir()
	if err != nil {
		return err
	}
	install := fmt.Sprintf("mkdir -p lib/modules; cp -a %s lib/modules/; chroot . depmod %s\n", from, filepath.Base(from))
	return run(ctx, root, "sh", "-c", furnishScript+install)
}

// filesInside are the machine's own files, by their name in guest.
var filesInside = map[string]string{
	"vmctl":              "usr/local/bin/vmctl",
	"vmctl.service":      "etc/systemd/system/vmctl.service",
	"lab-net.service":    "etc/systemd/system/lab-net.service",
	"cpuinfo.service":    "etc/systemd/system/cpuinfo.service",
	"containerd.service": "etc/systemd/system/containerd.service",
	"containerd.toml":    "etc/containerd/config.toml",
	"cni.conflist":       "etc/cni/net.d/10-lab.conflist",
}

func (p *parts) guestFiles(root string) error {
	for name, into := range filesInside {
		text, err := guest.ReadFile("guest/" + name)
		if err != nil {
			return err
		}
		path := filepath.Join(root, into)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if name == "vmctl" {
			mode = 0o755
		}
		if err := os.WriteFile(path, text, mode); err != nil {
			return err
		}
	}
	return nil
}

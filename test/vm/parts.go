package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodelet/nodelet/test/testbed"
)

// revision names the disk's content: another one builds it anew.
const revision = "r1"

// debian is what must be installed here to build and run the machine: a program and its package.
var debian = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs",
	"cpio": "cpio", "dpkg-deb": "dpkg", "busybox": "busybox-static",
}

// insideStorage is what a machine to prove volumes in has besides: both ends of iSCSI and of NFS.
const insideStorage = ",udev,e2fsprogs,open-iscsi,tgt,nfs-kernel-server,nfs-common"

// insideDebian is what the machine has installed.
const insideDebian = "systemd,systemd-sysv,dbus,iproute2,iptables,kmod,procps,libseccomp2"

// modules are what the initial ram disk inserts, in this order, to see the disk.
var modules = []string{"virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_legacy_dev", "virtio/virtio_pci_modern_dev",
	"virtio/virtio_pci", "block/virtio_blk"}

const initScript = `#!/bin/sh
/bin/busybox mount -t devtmpfs dev /dev
for m in %s; do /bin/busybox insmod /$m.ko 2>/dev/null; done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /lib/systemd/systemd
`

// parts are the files that machines start from, kept outside of the tree.
type parts struct {
	dir, disk, kernel, initrd string
	storage                   bool // with what volumes need
}

func run(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// getParts builds what is missing.
func getParts(ctx context.Context, storage bool) (*parts, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "nodelet-vm")
	p := &parts{dir: dir, kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd"), storage: storage}
	p.disk = filepath.Join(dir, "disk-"+p.suffix()+revision+".img")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := testbed.InstallDebian(ctx, os.Stdout, debian); err != nil {
		return nil, err
	}
	for _, build := range []struct {
		file string
		make func(context.Context) error
	}{{p.kernel, p.makeKernel}, {p.initrd, p.makeInitrd}, {p.disk, p.makeDisk}} {
		if _, err := os.Stat(build.file); err == nil {
			continue
		}
		fmt.Println("building", build.file)
		if err := build.make(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// suffix tells the files of one kind of machine from those of the other.
func (p *parts) suffix() string {
	if p.storage {
		return "storage-"
	}
	return ""
}

func (p *parts) modulesDir() (string, error) {
	all, err := filepath.Glob(filepath.Join(p.dir, "kernel/lib/modules/*"))
	if err != nil || len(all) != 1 {
		return "", fmt.Errorf("find the kernel's modules below %s: %v, %w", p.dir, all, err)
	}
	return all[0], nil
}

// makeKernel unpacks Debian's newest kernel for virtual machines.
func (p *parts) makeKernel(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "apt-cache", "search", "--names-only", `^linux-image-6\.1\.[0-9-]*-cloud-amd64$`).Output()
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
		if err := run(ctx, "", "cp", filepath.Join(from, "kernel/drivers", m+".ko"), work); err != nil && m != "virtio/virtio_ring" && m != "virtio/virtio" {
			return err // the first two are part of some kernels
		}
	}
	if err := os.WriteFile(filepath.Join(work, "init"), fmt.Appendf(nil, initScript, strings.Join(names, " ")), 0o755); err != nil {
		return err
	}
	return run(ctx, work, "sh", "-c", "ln -s busybox bin/sh && find . | cpio -o -H newc --quiet | gzip -1 > "+p.initrd+".new && mv "+p.initrd+".new "+p.initrd)
}

// makeDisk builds Debian with a runtime, as a file system.
func (p *parts) makeDisk(ctx context.Context) error {
	base, include := filepath.Join(p.dir, "debian"), insideDebian
	if p.storage {
		base, include = base+"-storage", include+insideStorage
	}
	if _, err := os.Stat(filepath.Join(base, "lib/systemd/systemd")); err != nil {
		if err := errors.Join(os.RemoveAll(base), run(ctx, "", "debootstrap", "--variant=minbase", "--include="+include, "bookworm", base)); err != nil {
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
	next := p.disk + ".new"
	_ = os.Remove(next)
	if err := run(ctx, "", "mke2fs", "-q", "-t", "ext4", "-d", root, next, "3G"); err != nil {
		return err
	}
	return os.Rename(next, p.disk)
}

func (p *parts) furnish(ctx context.Context, root string) error {
	cache, err := testbed.OpenCache(os.Stdout)
	if err != nil {
		return err
	}
	for module, into := range map[string]string{"containerd": "usr/local/bin", "runc": "usr/local/bin", "cri-tools": "usr/local/bin", "cni": "opt/cni/bin"} {
		var programs []string // all
		if module == "cri-tools" {
			programs = []string{"crictl"}
		}
		dir, err := cache.Programs(ctx, module, programs...)
		if err != nil {
			return err
		}
		if err := run(ctx, "", "sh", "-c", fmt.Sprintf("mkdir -p %s/%s && cp %s/* %s/%s/", root, into, dir, root, into)); err != nil {
			return err
		}
	}
	from, err := p.modulesDir()
	if err != nil {
		return err
	}
	version := filepath.Base(from)
	script := fmt.Sprintf(`set -e; cd %s
mkdir -p lib/modules etc/containerd etc/cni/net.d etc/kubernetes/manifests payload var/log/journal
cp -a %s lib/modules/
chroot . depmod %s
echo vm > etc/hostname; echo 127.0.0.1 localhost vm > etc/hosts; : > etc/fstab; : > etc/machine-id
rm -f etc/resolv.conf; echo nameserver 192.0.2.53 > etc/resolv.conf
chroot . passwd -q -d root
for u in lab-net containerd vmctl; do ln -sf /etc/systemd/system/$u.service etc/systemd/system/multi-user.target.wants/$u.service; done
ln -sf /dev/null etc/systemd/system/systemd-networkd-wait-online.service`, root, from, version)
	if err := p.guestFiles(root); err != nil {
		return err
	}
	return run(ctx, "", "sh", "-c", script)
}

func (p *parts) guestFiles(root string) error {
	for name, into := range map[string]string{
		"vmctl": "usr/local/bin/vmctl", "vmctl.service": "etc/systemd/system/vmctl.service", "lab-net.service": "etc/systemd/system/lab-net.service",
		"containerd.service": "etc/systemd/system/containerd.service", "containerd.toml": "etc/containerd/config.toml", "cni.conflist": "etc/cni/net.d/10-lab.conflist",
	} {
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

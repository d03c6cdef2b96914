package testbed

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// suiteRevision is the prefix of the archives' names. Increase it when a recipe below changes.
const suiteRevision = "suite10"

//go:embed templates/sh.c
var shSource []byte

//go:embed templates/nsenter.sh
var nsenterScript []byte

//go:embed templates/nmeter.sh
var nmeterScript []byte

// nmeter stands in for the command that specs print the time with.
var nmeter = imageFile{name: "/usr/bin/nmeter", mode: 0o755, body: nmeterScript}

// SuiteImages builds the missing images for the node tests of Kubernetes' own test suite, from Debian packages and Go
// programs and with the names that the suite uses, and returns their archives. They replace the images of Images with
// the same names.
func (c *Cache) SuiteImages(ctx context.Context) ([]string, error) {
	b := imageBuilder{c}
	var recipes []recipe
	for _, r := range []struct {
		name   string
		images []string // as the suite names them, without registry and tag
		build  func(context.Context) (image, error)
	}{
		{"pause", []string{"pause"}, b.pauseImage},
		{"busybox", []string{"busybox"}, b.suiteBusybox},
		{"agnhost", []string{"agnhost"}, b.suiteAgnhost},
		{"debian", []string{"ipc-utils", "glibc-dns-testing", "perl"}, b.suiteDebian},
		{"nginx", []string{"nginx"}, b.suiteNginx},
		{"nonroot", []string{"nonroot"}, b.suiteNonRoot},
		{"nonewprivs", []string{"nonewprivs"}, b.suiteNoNewPrivs},
		{"kitten", []string{"kitten"}, b.suiteKitten},
		{"nautilus", []string{"nautilus"}, b.suiteNautilus},
		{"device-plugin", []string{"sample-device-plugin"}, b.suiteDevicePlugin},
	} {
		next, err := b.forSuite(suiteRevision+"-"+r.name, r.build, r.images...)
		if err != nil {
			return nil, err
		}
		recipes = append(recipes, next)
	}
	return c.archives(ctx, recipes)
}

// AggregatorImages builds the missing images for the spec of an API server behind the aggregator, and returns their
// archives: the project's sample of one, of the suite's Kubernetes version and not of 1.29 as its tag says, and etcd.
func (c *Cache) AggregatorImages(ctx context.Context) ([]string, error) {
	b := imageBuilder{c}
	const name = "sample-apiserver"
	server, err := b.forSuite(suiteRevision+"-"+name, b.programImage(name, name), name)
	if err != nil {
		return nil, err
	}
	etcd, err := b.etcd()
	if err != nil {
		return nil, err
	}
	return c.archives(ctx, []recipe{server, etcd})
}

// Suite builds Kubernetes' own test suite and its runner, and returns the directory of e2e.test and ginkgo.
func (c *Cache) Suite(ctx context.Context) (string, error) { return c.Programs(ctx, "suite") }

// suiteBusybox is busybox with all commands in /bin, with nmeter, and with a shell that keeps unusual environment
// variables; see templates/nmeter.sh and sh.c.
func (b imageBuilder) suiteBusybox(ctx context.Context) (image, error) {
	img, err := b.busyboxImage(ctx)
	if err != nil {
		return image{}, err
	}
	for _, f := range img.files {
		if f.link != "" && filepath.Dir(f.name) != "/bin" {
			img.files = append(img.files, imageFile{name: "/bin/" + filepath.Base(f.name), mode: f.mode, link: f.link})
		}
	}
	img.files = append(img.files, nmeter)
	img.files, err = b.withShell(ctx, img.files)
	return img, err
}

func (b imageBuilder) withShell(ctx context.Context, files []imageFile) ([]imageFile, error) {
	bash, err := b.cache.DebianFile(ctx, "bash-static", "bin/bash-static")
	if err != nil {
		return nil, err
	}
	body, err := os.ReadFile(bash)
	if err != nil {
		return nil, err
	}
	sh, err := b.compileC(ctx, shSource)
	if err != nil {
		return nil, err
	}
	var kept []imageFile
	for _, f := range files {
		if f.name != "/bin/sh" && f.name != "/bin/bash" {
			kept = append(kept, f)
		}
	}
	return append(
		kept,
		imageFile{name: "/bin/bash", mode: 0o755, body: body},
		imageFile{name: "/bin/sh", mode: 0o755, body: sh},
	), nil
}

// suiteAgnhost is agnhost on a Debian root file system with the tools that the suite calls, and with the pause image
// in the directory that agnhost's fake registry serves.
func (b imageBuilder) suiteAgnhost(ctx context.Context) (image, error) {
	plain, err := b.agnhostImage(ctx)
	if err != nil {
		return image{}, err
	}
	debian, err := b.debianRoot(ctx)
	if err != nil {
		return image{}, err
	}
	debian = slices.DeleteFunc(debian, func(f imageFile) bool { // agnhost's have the suite's user
		return f.name == "/etc/passwd" || f.name == "/etc/group"
	})
	have := map[string]bool{}
	for _, f := range debian {
		have[unmerged(f.name)] = true
	}
	for _, f := range plain.files { // busybox has commands that the Debian root has not
		if !have[unmerged(f.name)] {
			f.name = merged(f.name)
			debian = append(debian, f)
		}
	}
	if debian, err = withNsenter(debian); err != nil {
		return image{}, err
	}
	pause, err := b.pauseImage(ctx)
	if err != nil {
		return image{}, err
	}
	served, err := pause.served("/var/registry/pause", "testing")
	if err != nil {
		return image{}, err
	}
	plain.files = append(append(debian, served...), nmeter)
	upstream, err := b.cache.ModuleSource(ctx, "kubernetes")
	if err != nil {
		return image{}, err
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} { // certificate and key of netexec
		body, err := os.ReadFile(filepath.Join(upstream, "test/images/agnhost/porter", name))
		if err != nil {
			return image{}, err
		}
		plain.files = append(plain.files, imageFile{name: "/" + name, mode: 0o644, body: body})
	}
	return plain, nil
}

// withNsenter replaces nsenter with a script that calls it; see templates/nsenter.sh.
func withNsenter(files []imageFile) ([]imageFile, error) {
	const name = "/usr/bin/nsenter"
	for i := range files {
		if merged(files[i].name) == name {
			files[i].name = name + ".real"
			return append(files, imageFile{name: name, mode: 0o755, body: nsenterScript}), nil
		}
	}
	return nil, fmt.Errorf("find %s: not in the Debian root file system", name)
}

// merged returns the path of a file where /bin, /sbin and /lib are links to the directories below /usr, as in Debian.
func merged(name string) string {
	for _, dir := range []string{"/bin/", "/sbin/", "/lib/"} {
		if strings.HasPrefix(name, dir) {
			return "/usr" + name
		}
	}
	return name
}

// unmerged returns one path for a command in any of the usual directories, to compare paths.
func unmerged(name string) string {
	name = merged(name)
	if strings.HasPrefix(name, "/usr/sbin/") {
		return "/usr/bin/" + strings.TrimPrefix(name, "/usr/sbin/")
	}
	return name
}

// suiteDebian replaces the images that contain a distribution with some tools.
func (b imageBuilder) suiteDebian(ctx context.Context) (image, error) {
	files, err := b.debianRoot(ctx)
	return image{
		files: files, cmd: []string{"bash"}, env: []string{imagePath},
	}, err
}

// suiteNginx answers HTTP on port 80, as nginx would.
func (b imageBuilder) suiteNginx(ctx context.Context) (image, error) {
	files, err := b.busyboxRoot(ctx)
	return image{
		files: append(files,
			imageFile{name: "/www", mode: 0o755, isDir: true},
			imageFile{name: "/www/index.html", mode: 0o644, body: []byte("<h1>Welcome to nginx!</h1>\n")}),
		cmd: []string{"httpd", "-f", "-p", "80", "-h", "/www"}, env: []string{imagePath},
	}, err
}

// suiteKitten is the image that specs mount as an image volume. It has the file and the distribution that they expect.
func (b imageBuilder) suiteKitten(ctx context.Context) (image, error) {
	img, err := b.agnhostImage(ctx)
	return pictured(img, "kitten"), err
}

// suiteNautilus is the same with another file, by which specs of rolling updates distinguish it from suiteKitten.
func (b imageBuilder) suiteNautilus(ctx context.Context) (image, error) {
	img, err := b.agnhostImage(ctx)
	return pictured(img, "nautilus"), err
}

// pictured adds a file with the name of a picture to agnhost's image, which serves the file.
func pictured(img image, name string) image {
	img.refs, img.cmd = nil, []string{"test-webserver"}
	img.files = append(img.files,
		imageFile{name: "/data.json", mode: 0o644, body: fmt.Appendf(nil, "{\"image\": \"%s.jpg\"}\n", name)},
		imageFile{name: "/etc/os-release", mode: 0o644, body: []byte("NAME=\"Alpine Linux\"\n")})
	return img
}

func (b imageBuilder) suiteNonRoot(ctx context.Context) (image, error) {
	img, err := b.suiteBusybox(ctx)
	img.refs, img.user = nil, "1234"
	return img, err
}

// suiteNoNewPrivs has a setuid program that prints its effective user ID.
func (b imageBuilder) suiteNoNewPrivs(ctx context.Context) (image, error) {
	img, err := b.suiteBusybox(ctx)
	if err != nil {
		return image{}, err
	}
	program, err := b.cache.Program(ctx, "suite", "nonewprivs")
	if err != nil {
		return image{}, err
	}
	body, err := os.ReadFile(program)
	img.files = append(img.files,
		imageFile{name: "/usr/local", mode: 0o755, isDir: true},
		imageFile{name: "/usr/local/bin", mode: 0o755, isDir: true},
		imageFile{name: "/usr/local/bin/nnp", mode: 0o6755, body: body})
	img.refs, img.cmd = nil, []string{"nnp"}
	return img, err
}

// suiteDevicePlugin is the project's own device plugin for tests.
func (b imageBuilder) suiteDevicePlugin(ctx context.Context) (image, error) {
	files, err := b.busyboxRoot(ctx)
	if err != nil {
		return image{}, err
	}
	program, err := b.cache.Program(ctx, "suite", "sample-device-plugin")
	if err != nil {
		return image{}, err
	}
	body, err := os.ReadFile(program)
	return image{
		files:      append(files, imageFile{name: "/sampledeviceplugin", mode: 0o755, body: body}),
		entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}, env: []string{imagePath},
	}, err
}

// debianRoot is a small Debian root file system with network tools.
func (b imageBuilder) debianRoot(ctx context.Context) ([]imageFile, error) {
	dir := filepath.Join(b.cache.dir, "debian-root-"+imageRevision)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := b.bootstrap(ctx, dir); err != nil {
			return nil, fmt.Errorf("create a Debian root file system: %w", err)
		}
	}
	var files []imageFile
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(p, dir)
		if err != nil || name == "" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := imageFile{name: name, mode: int64(info.Mode().Perm()), isDir: d.IsDir()}
		for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
			if info.Mode()&bit != 0 {
				f.mode |= unix
			}
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			f.link, err = os.Readlink(p)
		case info.Mode().IsRegular():
			f.body, err = os.ReadFile(p)
		case !d.IsDir():
			return nil // the runtime creates devices
		}
		files = append(files, f)
		return err
	})
	return files, err
}

// bootstrap installs the packages of a root file system with debootstrap and removes what no program needs.
func (b imageBuilder) bootstrap(ctx context.Context, dir string) error {
	if err := installDebian(ctx, b.cache.progress, []need{{pkg: "debootstrap", command: "debootstrap"}}); err != nil {
		return err
	}
	release, err := run(ctx, "sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME")
	if err != nil {
		return err
	}
	temp, err := b.cache.workDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	tools := "curl,bind9-dnsutils,netcat-openbsd,iproute2,iptables,procps"
	_, err = run(ctx, "debootstrap", "--variant=minbase", "--include="+tools, strings.TrimSpace(release), temp)
	if err != nil {
		return err
	}
	for _, p := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/i18n", "usr/share/info",
		"usr/share/zoneinfo", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/log", "usr/lib/apt", "debootstrap", "dev",
		"proc", "sys"} {
		if err := os.RemoveAll(filepath.Join(temp, p)); err != nil {
			return err
		}
	}
	for _, p := range []string{"dev", "proc", "sys", "var/log", "var/cache"} {
		if err := os.Mkdir(filepath.Join(temp, p), 0o755); err != nil {
			return err
		}
	}
	return os.Rename(temp, dir)
}

package testbed

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The images that a testbed's runtimes have from the start.
const (
	PauseImage   = "registry.k8s.io/pause:3.10"
	BusyboxImage = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
	AgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"

	busyboxShort = "docker.io/library/busybox:1.37"
	imagePath    = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// imageRevision is part of the archives' names. Increase it when a recipe below changes.
	imageRevision = "r1"
)

//go:embed templates/pause.c
var pauseSource []byte

// imageBuilder builds images from programs and Debian packages of the cache. It stores nothing; Cache.archives does.
type imageBuilder struct{ cache *Cache }

// Images builds the missing image archives and returns the paths of all: OCI layouts as tar, for "ctr images import".
func (c *Cache) Images(ctx context.Context) ([]string, error) {
	b := imageBuilder{c}
	return c.archives(ctx, []recipe{
		{"pause-3.10", b.pauseImage},
		{"busybox-1.37", b.busyboxImage},
		{"agnhost-2.63.0", b.agnhostImage},
	})
}

// recipe builds one image. name is the name of its archive without ".tar".
type recipe struct {
	name  string
	build func(context.Context) (image, error)
}

// archives builds the missing archives of recipes and returns the paths of all.
func (c *Cache) archives(ctx context.Context, recipes []recipe) ([]string, error) {
	dir := filepath.Join(c.dir, "images-"+imageRevision)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx, "images")
	if err != nil {
		return nil, err
	}
	defer unlock()
	var paths []string
	for _, r := range recipes {
		file := filepath.Join(dir, r.name+".tar")
		name := filepath.Join(filepath.Base(dir), r.name+".tar")
		paths, c.used = append(paths, file), append(c.used, name)
		if _, err := os.Stat(file); err == nil {
			continue
		}
		if done, err := c.mirror.fetch(ctx, c.dir, name); err != nil {
			return nil, err
		} else if done {
			continue
		}
		if err := c.lacks("image " + r.name); err != nil {
			return nil, err
		}
		fmt.Fprintf(c.progress, "image %s: building\n", r.name)
		img, err := r.build(ctx)
		if err != nil {
			return nil, fmt.Errorf("build image %s: %w", r.name, err)
		}
		if err := writeImage(file, img); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func writeImage(file string, img image) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := img.write(f); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

func (b imageBuilder) pauseImage(ctx context.Context) (image, error) {
	body, err := b.compileC(ctx, pauseSource)
	return image{
		refs:       []string{PauseImage},
		files:      []imageFile{{name: "/pause", mode: 0o755, body: body}},
		entrypoint: []string{"/pause"},
		env:        []string{imagePath},
	}, err
}

func (b imageBuilder) busyboxImage(ctx context.Context) (image, error) {
	files, err := b.busyboxRoot(ctx)
	return image{
		refs:  []string{BusyboxImage, busyboxShort},
		files: files,
		cmd:   []string{"sh"},
		env:   []string{imagePath},
	}, err
}

// compileC compiles a C source to a static program.
func (b imageBuilder) compileC(ctx context.Context, text []byte) ([]byte, error) {
	if err := installDebian(ctx, b.cache.progress, cgoNeeds()[:2]); err != nil {
		return nil, err
	}
	temp, err := b.cache.workDir()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	source, binary := filepath.Join(temp, "program.c"), filepath.Join(temp, "program")
	if err := os.WriteFile(source, text, 0o644); err != nil {
		return nil, err
	}
	if _, err := run(ctx, "gcc", "-Os", "-Wall", "-static", "-s", "-o", binary, source); err != nil {
		return nil, err
	}
	return os.ReadFile(binary)
}

// agnhostImage is Kubernetes' test server on a busybox root file system. Specs use agnhost-2 as another entrypoint.
func (b imageBuilder) agnhostImage(ctx context.Context) (image, error) {
	files, err := b.busyboxRoot(ctx)
	if err != nil {
		return image{}, err
	}
	program, err := b.cache.Program(ctx, "kubernetes", "agnhost")
	if err != nil {
		return image{}, err
	}
	body, err := os.ReadFile(program)
	if err != nil {
		return image{}, err
	}
	files = append(files,
		imageFile{name: "/agnhost", mode: 0o755, body: body},
		imageFile{name: "/agnhost-2", mode: 0o777, link: "agnhost"},
		imageFile{name: "/uploads", mode: 0o755, isDir: true},
	)
	return image{
		refs: []string{AgnhostImage}, files: files,
		entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}, env: []string{imagePath},
	}, nil
}

// busyboxRoot is a root file system with Debian's static busybox, a link for each applet, and the accounts that tests
// use.
func (b imageBuilder) busyboxRoot(ctx context.Context) ([]imageFile, error) {
	binary, err := b.cache.DebianFile(ctx, "busybox-static", "bin/busybox")
	if err != nil {
		return nil, err
	}
	body, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	applets, err := run(ctx, binary, "--list-full")
	if err != nil {
		return nil, err
	}
	files := []imageFile{{name: "/tmp", mode: 0o1777, isDir: true}, {name: "/root", mode: 0o700, isDir: true}}
	for _, d := range []string{"/bin", "/dev", "/etc", "/home", "/proc", "/sbin", "/sys", "/usr", "/usr/bin", "/usr/sbin",
		"/var"} {
		files = append(files, imageFile{name: d, mode: 0o755, isDir: true})
	}
	files = append(files,
		imageFile{name: "/bin/busybox", mode: 0o755, body: body},
		imageFile{name: "/etc/passwd", mode: 0o644, body: []byte(passwd)},
		imageFile{name: "/etc/group", mode: 0o644, body: []byte(group)},
	)
	return append(files, appletLinks(applets)...), nil
}

// appletLinks converts the output of "busybox --list-full" to links, in the same order. It leaves out other
// directories than bin and sbin.
func appletLinks(list string) []imageFile {
	var links []imageFile
	for _, a := range strings.Fields(list) {
		name := "/" + a
		dir := path.Dir(name)
		if !slices.Contains([]string{"/bin", "/sbin", "/usr/bin", "/usr/sbin"}, dir) || name == "/bin/busybox" {
			continue
		}
		links = append(links, imageFile{name: name, mode: 0o777, link: "/bin/busybox"})
	}
	return links
}

const passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
`

const group = `root:x:0:
daemon:x:1:
bin:x:2:
www-data:x:33:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nogroup:x:65534:
`

package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/test/cri/fake"
)

const mebi = 1 << 20

// disk is a node with images on a disk of 1000 MiB, of which they fill their sizes.
type disk struct {
	*Collector
	t       *testing.T
	runtime *fake.Runtime
	client  *cri.Client

	mu     sync.Mutex
	events []string
	other  uint64 // MiB that no image holds
}

// onDisk runs a test in a bubble. The images are called a, b, c …, each of 100 MiB.
func onDisk(t *testing.T, o CollectorOptions, images string, test func(d *disk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &disk{t: t, runtime: fake.New()}
		for name := range strings.FieldsSeq(images) {
			d.add(name)
		}
		d.runtime.Start()
		var err error
		dial := cri.Options{Log: discard, Connect: d.runtime.Connect}
		if d.client, err = cri.Dial("unix:///run/fake.sock", dial); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			d.client.Close()
			d.runtime.Close()
		})
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
		o.Removed, o.Collected = func() {}, func(string) {}
		o.Event = func(_, reason, message string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.events = append(d.events, reason+": "+message)
		}
		d.Collector = NewCollector(d.client, o)
		d.fileSystem = func(path string) (machine.FileSystem, error) {
			if path != "/var/lib/containerd" {
				return machine.FileSystem{}, fmt.Errorf("asked for %s", path)
			}
			free := (1000 - d.other - 100*uint64(len(d.images()))) * mebi
			return machine.FileSystem{Size: 1000 * mebi, Available: free}, nil
		}
		test(d)
	})
}

func (d *disk) add(name string) {
	d.runtime.AddImage(fake.RemoteImage{Name: name, ID: "sha256:" + name, Size: 100 * mebi})
}

// use runs a container of an image.
func (d *disk) use(name string, mounts ...*runtimeapi.Mount) (id string) {
	d.t.Helper()
	pod := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod-" + name, Namespace: "default",
		Uid: name}}
	box, err := d.client.RunPodSandbox(d.t.Context(), pod, "")
	if err == nil {
		id, err = d.client.CreateContainer(d.t.Context(), box, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
			Image:    &runtimeapi.ImageSpec{Image: "sha256:" + name},
			Mounts:   mounts,
		}, pod)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return id
}

// images are the names of those that are there.
func (d *disk) images() []string {
	all, err := d.client.ListImages(d.t.Context())
	if err != nil {
		d.t.Error(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, strings.TrimPrefix(i.Id, "sha256:"))
	}
	slices.Sort(names)
	return names
}

func (d *disk) check(when, want string) {
	d.t.Helper()
	if got := strings.Join(d.images(), " "); got != want {
		d.t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

func (d *disk) collect(wantErr string) {
	d.t.Helper()
	err := d.Collect(d.t.Context())
	if text := fmt.Sprint(err); wantErr == "" && err != nil || !strings.Contains(text, wantErr) {
		d.t.Errorf("collection: got %v, want %q", err, wantErr)
	}
}

var usual = CollectorOptions{HighPercent: 85, LowPercent: 80, MinimumAge: 2 * time.Minute}

// TestCollect checks that nothing goes below the high mark; above it the images unused for longest go, down to the
// low mark.
func TestCollect(t *testing.T) {
	onDisk(t, usual, "a b c d e f", func(d *disk) {
		d.other = 240
		b := d.use("b")
		d.collect("")
		time.Sleep(10 * time.Minute)
		d.use("a")
		d.collect("")
		d.check("at 84%", "a b c d e f")
		if err := d.client.RemoveContainer(d.t.Context(), b); err != nil {
			d.t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		d.other = 250
		d.collect("")
		d.check("at 85%", "a b d e f") // c, d, e and f were never used, b was once
		d.other = 500
		d.collect("")
		d.check("at 100%", "a b f")
		d.other = 600
		d.collect("")
		d.check("at 90%", "a b")
		d.other = 700
		d.collect("")
		d.check("with one in use", "a")
		d.other = 800
		d.collect("Insufficient free disk space on the node's image filesystem (90% of 1000.0 MiB used). " +
			"Failed to free sufficient space by deleting unused images (freed 0 bytes). " +
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.")
		d.check("in the end", "a")
		if len(d.events) != 1 || !strings.HasPrefix(d.events[0], "FreeDiskSpaceFailed: Insufficient free disk space") {
			d.t.Errorf("events: got %q, want FreeDiskSpaceFailed alone", d.events)
		}
	})
}

// TestCollectArtifacts checks that an OCI artifact is removed, which CRI-O knows only by its name, and that one without
// a name, which CRI-O does not remove, does not count as removed.
func TestCollectArtifacts(t *testing.T) {
	id := strings.Repeat("1", 64)
	for name, want := range map[string]string{"example.com/model": "a b", "unknown": id + " b"} {
		onDisk(t, usual, "a b", func(d *disk) {
			d.runtime.AddImage(fake.RemoteImage{Name: name + "@sha256:" + id, ID: id, Size: 100 * mebi})
			d.collect("")
			time.Sleep(10 * time.Minute)
			d.other = 550
			err := d.Collect(d.t.Context())
			d.check(name, want)
			if fails := name == "unknown"; fails != (err != nil) {
				d.t.Errorf("%s: got error %v, want one: %v", name, err, fails)
			}
		})
	}
}

// TestCollectSpares checks that what is young stays, and what a pod has asked for a moment ago though no container
// uses it yet.
func TestCollectSpares(t *testing.T) {
	onDisk(t, usual, "a b", func(d *disk) {
		d.other = 700
		d.collect("(freed 0 bytes)")
		d.check("at first sight", "a b")
		time.Sleep(2 * time.Minute)
		d.Wanted("sha256:a")
		d.collect("")
		d.check("later", "a")
		d.other = 800
		d.collect("(freed 0 bytes)")
		d.check("wanted just now", "a")
		time.Sleep(2 * time.Minute)
		d.collect("")
		d.check("wanted a while ago", "")
	})
}

// TestCollectSparesImageVolumes checks that an image stays as long as a container has it as a volume.
func TestCollectSparesImageVolumes(t *testing.T) {
	onDisk(t, usual, "a b c", func(d *disk) {
		id := d.use("a", &runtimeapi.Mount{ContainerPath: "/data", Image: &runtimeapi.ImageSpec{Image: "sha256:b"}})
		if err := d.client.StartContainer(d.t.Context(), id); err != nil {
			d.t.Fatal(err)
		}
		d.collect("")
		time.Sleep(10 * time.Minute)
		d.other = 600
		d.collect("")
		d.check("with the volume", "a b")
		if n := d.runtime.Verbs()["ContainerStatus"]; n != 1 {
			t.Errorf("got %d calls for the mounts of one container, want one", n)
		}
		if err := d.client.RemoveContainer(d.t.Context(), id); err != nil {
			d.t.Fatal(err)
		}
		d.other = 700
		d.collect("")
		d.check("without the volume", "b") // a was unused for longer: b comes after it by name
	})
}

// TestCollectSparesByAnyName checks that an image stays also if a container names it by a tag or a digest.
func TestCollectSparesByAnyName(t *testing.T) {
	onDisk(t, usual, "a b c", func(d *disk) {
		const digest = "docker.io/library/c@sha256:1"
		d.runtime.AddImage(fake.RemoteImage{Name: digest, ID: "sha256:c", Size: 100 * mebi})
		tag := &runtimeapi.ImageSpec{Image: "docker.io/library/b:latest"}
		d.use("a",
			&runtimeapi.Mount{ContainerPath: "/b", Image: tag},
			&runtimeapi.Mount{ContainerPath: "/c", Image: &runtimeapi.ImageSpec{Image: digest}})
		d.collect("")
		time.Sleep(10 * time.Minute)
		d.other = 600
		d.collect("(freed 0 bytes)")
		d.check("with all in use", "a b c")
	})
}

// TestCollectSparesPauseImage checks that the image of sandboxes stays with a runtime that does not pin it. No
// container has it, and without it no sandbox is created as long as the registry is away.
func TestCollectSparesPauseImage(t *testing.T) {
	for config, want := range map[string]string{
		`{"sandboxImage":"docker.io/library/b"}`:          "b",
		`{"sandboxImage":"docker.io/library/not-pulled"}`: "c",
		`{}`:             "c",
		`[not = "JSON"]`: "c",
	} {
		onDisk(t, usual, "a b c", func(d *disk) {
			d.runtime.Info = map[string]string{"config": config}
			d.collect("")
			time.Sleep(10 * time.Minute)
			d.other = 700
			d.collect("")
			d.check("with "+config, want)
		})
	}
	onDisk(t, usual, "a b", func(d *disk) {
		d.collect("")
		time.Sleep(10 * time.Minute)
		d.other = 800
		d.runtime.Inject(&fake.Fault{Verb: "Status", Err: errors.New("not now")})
		d.collect("not now")
		d.check("without an answer", "a b")
	})
}

// TestCollectSparesPinned checks that an image which the runtime has pinned stays, for whatever reason images are
// removed.
func TestCollectSparesPinned(t *testing.T) {
	o := usual
	o.MaximumAge = time.Hour
	for name, remove := range map[string]func(d *disk){
		"full disk": func(d *disk) {
			d.other = 700
			d.collect("")
		},
		"age": func(d *disk) {
			time.Sleep(time.Hour)
			d.collect("")
		},
		"eviction": func(d *disk) {
			if err := d.RemoveUnused(d.t.Context()); err != nil {
				d.t.Error(err)
			}
		},
	} {
		onDisk(t, o, "a c", func(d *disk) {
			d.runtime.AddImage(fake.RemoteImage{Name: "b", ID: "sha256:b", Size: 100 * mebi, Pinned: true})
			d.collect("")
			time.Sleep(10 * time.Minute)
			remove(d)
			d.check(name, "b")
		})
	}
}

// TestCollectSparesWantedMeanwhile checks that an image stays that a pod asks for after it was chosen for removal, also
// without a minimum age.
func TestCollectSparesWantedMeanwhile(t *testing.T) {
	o := usual
	o.MinimumAge = 0
	onDisk(t, o, "a b", func(d *disk) {
		d.other = 700
		d.fileSystem = func(string) (machine.FileSystem, error) {
			time.Sleep(time.Second)
			d.Wanted("sha256:a")
			return machine.FileSystem{Size: 1000 * mebi, Available: 100 * mebi}, nil
		}
		d.collect("")
		d.check("after the collection", "a")
	})
}

// TestCollectOld checks that what has lain unused for the maximum age goes, but not before the agent has looked on
// for so long.
func TestCollectOld(t *testing.T) {
	o := usual
	o.HighPercent, o.MaximumAge = 100, time.Hour
	onDisk(t, o, "a b", func(d *disk) {
		d.use("a")
		d.collect("")
		time.Sleep(time.Hour)
		d.collect("")
		d.check("after an hour", "a b")
		time.Sleep(time.Second)
		d.add("c")
		d.collect("")
		d.check("after more than that", "a c")
		time.Sleep(2 * time.Minute)
		d.other, d.o.LowPercent = 790, 90
		d.collect("")
		d.check("on a disk with some space", "a c")
		d.other = 800
		d.collect("")
		d.check("on a full disk", "a")
		d.add("d")
		d.o.MaximumAge = 0
		d.collect("")
		time.Sleep(2 * time.Minute)
		d.collect("")
		d.check("on a full disk, without a maximum age", "a d")
	})
}

// TestCollectBesideAStuckImage checks that an image which has lain unused for too long and cannot be removed does not
// keep the disk full.
func TestCollectBesideAStuckImage(t *testing.T) {
	o := usual
	o.MaximumAge = time.Hour
	onDisk(t, o, "a b c", func(d *disk) {
		d.collect("")
		time.Sleep(time.Hour)
		d.add("d")
		d.collect("")
		time.Sleep(10 * time.Minute)
		d.runtime.Inject(&fake.Fault{Verb: "RemoveImage", Object: "sha256:a", Err: errors.New("image is in use")})
		d.other = 650
		d.collect("image is in use")
		d.check("with an old image that stays", "a")
	})
}

// TestRemoveUnused checks that RemoveUnused removes all images that it may, and Run collects periodically.
func TestRemoveUnused(t *testing.T) {
	onDisk(t, usual, "a b c", func(d *disk) {
		removed := 0
		d.o.Removed = func() { removed++ }
		d.use("b")
		d.collect("")
		time.Sleep(2 * time.Minute)
		if err := d.RemoveUnused(d.t.Context()); err != nil || removed != 1 {
			d.t.Errorf("got error %v and %d calls of Removed, want no error and 1 call", err, removed)
		}
		d.check("on demand", "b")
		d.add("x")
		d.add("y")
		d.other = 600
		go d.Run(d.t.Context())
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		d.check("by itself", "b y")
	})
}

// TestRemovalThatHangs checks that the removal of images ends when two calls have run into their deadline, and that the
// next one begins with the others.
func TestRemovalThatHangs(t *testing.T) {
	onDisk(t, usual, "a b c d e", func(d *disk) {
		d.collect("")
		time.Sleep(2 * time.Minute)
		hangs := d.runtime.Inject(&fake.Fault{Verb: "RemoveImage", Hang: true})
		if err := d.RemoveUnused(d.t.Context()); !cri.IsDeadline(err) || hangs.Hits() != 2 {
			d.t.Errorf("got error %v after %d calls, want that of two calls without an answer", err, hangs.Hits())
		}
		synctest.Wait() // the runtime knows that the client has given up
		d.runtime.Release(hangs)
		for _, id := range []string{"sha256:a", "sha256:b"} {
			d.runtime.Inject(&fake.Fault{Verb: "RemoveImage", Object: id, Hang: true})
		}
		if err := d.RemoveUnused(d.t.Context()); !cri.IsDeadline(err) {
			d.t.Errorf("got error %v, want that of the calls without an answer", err)
		}
		d.check("when the others can be removed", "a b")
	})
}

// TestImagesAreKnownFromTheStart checks that the age of an image counts from the start of the agent, and not from the
// first collection: pressure on the disk may come before that.
func TestImagesAreKnownFromTheStart(t *testing.T) {
	onDisk(t, usual, "a b", func(d *disk) {
		ctx, cancel := context.WithCancel(d.t.Context())
		defer cancel()
		d.runtime.Inject(&fake.Fault{Verb: "ListImages", Times: 1, Err: errors.New("not ready")})
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.Run(ctx)
		}()
		time.Sleep(2*time.Minute + detectRetry)
		if err := d.RemoveUnused(ctx); err != nil {
			d.t.Fatal(err)
		}
		d.check("two minutes after the first list", "")
		cancel()
		<-done
	})
}

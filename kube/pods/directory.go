package pods

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pods/manifest"
)

// directory is the state of the manifests at one path.
type directory struct {
	cfg   Config
	files map[string]*file
	// absent are the files that were removed since the last scan. The next one leaves them out although they are there
	// again, so that their pods end and start again, as in the kubelet: who removes a file and puts it back wants that.
	absent map[string]bool
	// running are the static pods that an earlier agent has left running, of all sources.
	running map[types.NamespacedName]Running
	// owner is the file that owns the name of an object, by kind and name. If two files have it, the one that owned it
	// before keeps it.
	owner map[string]string
	// used says that a file owns a name that is also in another one.
	used string
	refs references
	// synced is set when the path has been read once, and scanned is the time of the last scan.
	synced  bool
	scanned time.Time
	last    *delivery
}

func newDirectory(cfg Config, running map[types.NamespacedName]Running) *directory {
	return &directory{
		cfg:     cfg,
		files:   map[string]*file{},
		absent:  map[string]bool{},
		running: running,
		owner:   map[string]string{},
		used:    "is used",
		refs:    newReferences(cfg.API, running),
	}
}

// Check reads the manifests once and returns what is wrong with them. It does not know which pods run.
func Check(cfg Config) []Problem {
	d := newDirectory(cfg, nil)
	d.used = "is used unless another one already is"
	state, _ := d.scan(time.Now())
	return state.problems
}

// scan reads what has changed and returns the state. If again is true, a file was being written, or was removed and is
// there again, and the caller is to scan again soon.
//
// A file that was valid and is invalid now counts with its last valid content. The objects of a file that was removed
// are removed.
func (d *directory) scan(now time.Time) (state delivery, again bool) {
	d.scanned = now
	state = delivery{source: SourceFile, synced: d.synced}
	paths, problems, err := listFiles(d.cfg.Manifests)
	if err != nil {
		d.assemble(&state)
		state.problems = append(state.problems, Problem{Source: SourceFile, File: d.cfg.Manifests, Unknown: !d.synced,
			Message: fmt.Sprintf("cannot read the manifests, their pods keep running: %v", err)})
		return state, false
	}
	paths = slices.DeleteFunc(paths, func(path string) bool {
		again = again || d.absent[path]
		return d.absent[path]
	})
	clear(d.absent)
	maps.DeleteFunc(d.files, func(path string, _ *file) bool { return !slices.Contains(paths, path) })
	for _, path := range paths {
		f := d.files[path]
		if f == nil {
			f = &file{}
			d.files[path] = f
		}
		origin := manifest.Origin{NodeName: d.cfg.NodeName, Source: string(SourceFile), Where: path}
		if f.load(path, origin, d.running, now) {
			again = true
		}
	}
	d.synced, state.synced = true, true
	state.problems = problems
	d.assemble(&state)
	return state, again
}

// assemble fills state with the valid objects of all files, and with the problems of all.
func (d *directory) assemble(state *delivery) {
	c := owners{directory: d, next: map[string]string{}}
	var pods []filePod
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		f, runs := d.files[path], false
		for _, p := range f.good.Pods {
			if c.owns("Pod", p, path) {
				pods = append(pods, filePod{p.Pod, path})
				runs = true
			}
		}
		for _, o := range f.good.ConfigMaps {
			if c.owns("ConfigMap", o, path) {
				state.configMaps = append(state.configMaps, o)
			}
		}
		for _, o := range f.good.Secrets {
			if c.owns("Secret", o, path) {
				state.secrets = append(state.secrets, o)
			}
		}
		state.problems = append(state.problems, d.problems(path, runs)...)
	}
	d.owner = c.next
	state.problems = append(state.problems, c.problems...)
	d.refs.admit(state, pods)
}

// problems returns what is wrong with a file. runs is true if it has pods that count.
func (d *directory) problems(path string, runs bool) (all []Problem) {
	const name = "its name does not end in .yaml, .yml, .json or .manifest"
	add := func(message string, unknown bool) {
		all = append(all, Problem{Source: SourceFile, File: path, Message: message, Unknown: unknown})
	}
	if !d.isManifest(path) {
		if !runs {
			add("ignored: "+name, false)
			return all
		}
		add(name+": its pod keeps running, but does not start after a reboot; rename it", false)
	}
	f := d.files[path]
	kept := ""
	if f.everOK && len(f.good.Pods) > 0 {
		kept = " (its pods keep running as before the change)"
	}
	for _, err := range f.errs {
		add(err.Error()+kept, !f.everOK)
	}
	for _, err := range f.good.Ignored {
		add("ignored: "+err.Error(), false)
	}
	return all
}

// isManifest reports whether a file counts by its name. Another one counts only for a pod that runs already and comes
// from it: the kubelet starts the pods of any file.
func (d *directory) isManifest(path string) bool {
	return path == d.cfg.Manifests || slices.Contains(extensions, strings.ToLower(filepath.Ext(path)))
}

// owners decides which file owns the name of an object if several files have it.
type owners struct {
	*directory
	next     map[string]string
	problems []Problem
}

// owns reports whether path is the file that owns kind and name: the one that owned them before, or else the one that
// choose returns.
func (c *owners) owns(kind string, o metav1.Object, path string) bool {
	key := kind + "/" + o.GetNamespace() + "/" + o.GetName()
	holder, ok := c.next[key]
	if !ok {
		before := c.owner[key]
		if holder = before; c.files[before] == nil || !c.files[before].holds(kind, o) {
			holder = c.choose(kind, o, before == "")
		}
		c.next[key] = holder
	}
	if holder != path && c.isManifest(path) {
		c.problems = append(c.problems, Problem{Source: SourceFile, File: path, Message: fmt.Sprintf(
			"%s %s/%s is also in %s, which %s: rename or remove one of them",
			kind, o.GetNamespace(), o.GetName(), holder, c.used)})
	}
	return holder == path
}

// choose returns which of the files that have an object owns its name: the last manifest, as in the kubelet. If the
// name had no owner yet, the pod may run already: then it is the file that the pod comes from, and the pod keeps its
// UID. It returns an empty path if no file counts.
func (d *directory) choose(kind string, o metav1.Object, first bool) (chosen string) {
	var known evidence
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[path]
		if !f.holds(kind, o) {
			continue
		}
		found := noEvidence
		if first && kind == "Pod" {
			found = d.evidence(f, f.pod(o))
		}
		if found >= known && (found == sameUID || d.isManifest(path)) {
			chosen, known = path, found
		}
	}
	if known == olderFile {
		p := d.files[chosen].pod(o)
		d.running[nameOf(p.Pod)].adopt(p)
	}
	return chosen
}

// evidence is what says that a pod that runs already comes from a manifest.
type evidence int

const (
	noEvidence evidence = iota
	// olderFile: the file has not changed since an agent has first seen the manifest of the pod, and has its containers.
	olderFile
	// sameUID: a version of the kubelet gives the manifest the UID of the pod, which tells the path of the file, too.
	sameUID
)

// evidence returns what says that the running pod of the name of p comes from p, which is in f. If it was first seen in
// the future, the clock was set back since, and the file may have changed later at an earlier time of day. An older
// file may have come back with its directory; it may have other containers.
func (d *directory) evidence(f *file, p manifest.Pod) evidence {
	r, runs := d.running[nameOf(p.Pod)]
	switch {
	case !runs || r.Source != SourceFile:
		return noEvidence
	case p.Gets(r.UID):
		return sameUID
	case !f.changed.IsZero() && f.changed.Before(r.Seen) && !r.Seen.After(d.scanned) && r.has(p.Pod):
		return olderFile
	}
	return noEvidence
}

// pod returns the pod of the valid content of f that has the name of o.
func (f *file) pod(o metav1.Object) manifest.Pod {
	return f.good.Pods[index(f.good.Pods, o.GetNamespace(), o.GetName())]
}

// holds reports whether the valid content of f has an object of this kind and name.
func (f *file) holds(kind string, o metav1.Object) bool {
	switch kind {
	case "Pod":
		return has(f.good.Pods, o.GetNamespace(), o.GetName())
	case "ConfigMap":
		return has(f.good.ConfigMaps, o.GetNamespace(), o.GetName())
	default:
		return has(f.good.Secrets, o.GetNamespace(), o.GetName())
	}
}

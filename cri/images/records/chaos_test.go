package records

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// node is a node on which pods of many owners pull and use images, from a seed. Its runtime knows images by name and by
// ID. A registry moves tags, so that a name gets another ID.
type node struct {
	*testing.T
	*rand.Rand
	root  string
	store *Store
	// present are the IDs of the images in the runtime by name; versions counts the IDs of a name in the registry.
	present  map[string]string
	versions map[string]int
	// unfinished are the names whose pull was given up or cut off. brought are the IDs that a pull has brought, or may
	// have brought.
	unfinished map[string]unresolved
	brought    map[string]bool
	// logins are the secrets that opened an image, by its ID, with the hash of their login. open are the IDs of images
	// that a pull without credentials has brought.
	logins map[string]map[Secret]string
	open   map[string]bool
	// listed are the IDs that the runtime has listed for this run of the agent, at the time requested; none if it has not,
	// or if the records were pruned since. added is when something was last added to the record of an ID, or was there.
	listed    []string
	requested time.Time
	added     map[string]time.Time
}

// TestRecordsChaos checks the records while images are pulled, used, replaced and removed, pulls are given up, the
// agent is killed at any moment of a pull, and records are damaged:
//
//   - NotForOthers: a pod may use an image that the agent has pulled only with a login that has opened it.
//   - NotLost: a pod with such a login may use it, also after a restart, unless its record was damaged.
//   - Preloaded: every pod may use an image that no pull has brought, at the latest the time Settle after a pull of its
//     name was given up.
func TestRecordsChaos(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := &node{T: t, Rand: rand.New(rand.NewPCG(seed, 2)), root: t.TempDir(), present: map[string]string{},
					versions: map[string]int{}, unfinished: map[string]unresolved{}, brought: map[string]bool{},
					logins: map[string]map[Secret]string{}, open: map[string]bool{}, added: map[string]time.Time{}}
				n.restart()
				for range 150 {
					n.act()
				}
			})
		})
	}
}

func (n *node) name() string { return fmt.Sprintf("r.io/%c:%d", 'a'+n.IntN(3), n.IntN(2)) }

// login returns a secret of one of three pods, with one of three logins.
func (n *node) login() Credentials {
	pod := fmt.Sprint("pod", n.IntN(3))
	return secret(pod, "pull", pod, fmt.Sprint("login", n.IntN(3)))
}

func (n *node) act() {
	switch name := n.name(); n.IntN(14) {
	case 0, 1, 2:
		n.pull(name)
	case 3:
		n.restart()
	case 4: // the image is removed from the node
		delete(n.present, name)
		n.list()
		for range n.IntN(2) { // and may be pulled again before the runtime has answered
			n.pull(name)
		}
		n.prune()
	case 5: // another client of the runtime brings an image
		if n.present[name] == "" {
			n.versions[name]++
			n.present[name] = n.id(name)
		}
	case 6:
		n.versions[name]++ // the tag moves
	case 7:
		n.damage(name)
	case 8:
		time.Sleep(time.Duration(n.Int64N(int64(2 * Settle))))
	default:
		n.use(name)
	}
}

func (n *node) id(name string) string { return fmt.Sprint("sha256:", name, n.versions[name]) }

// pull pulls an image. The pull may be given up, and the agent killed, before or after the runtime has the image.
func (n *node) pull(name string) {
	n.resolve()
	before := n.present[name]
	if err := n.store.Begin(n.Context(), name); err != nil {
		n.Fatal(err)
	}
	end, used := n.IntN(8), n.login()
	switch end {
	case 0:
		used = Credentials{EveryPod: true}
	case 1:
		n.store.Failed(name)
		return
	case 2, 3: // the agent is killed
		if end == 3 {
			n.present[name] = n.id(name)
		}
		n.unfinished[name] = unresolved{}
		n.restart()
		return
	case 4, 5: // the pull is given up
		n.store.Unknown(name, before)
		if u, open := n.unfinished[name]; open && u.before != before {
			before = ""
		}
		n.unfinished[name] = unresolved{time.Now(), before}
		if end == 5 { // and the runtime has it a moment later
			n.present[name] = n.id(name)
		}
		return
	}
	n.present[name] = n.id(name)
	n.brought[n.id(name)] = true
	n.grant(n.id(name), used)
	n.store.Succeeded(n.Context(), name, n.id(name), used)
}

// grant records in the model that a pull by these credentials has opened an image.
func (n *node) grant(id string, c Credentials) {
	n.added[id] = time.Now()
	n.open[id] = n.open[id] || c.EveryPod
	if n.logins[id] == nil {
		n.logins[id] = map[Secret]string{}
	}
	for _, s := range c.Secrets {
		hash := s.CredentialHash
		s.CredentialHash = ""
		n.logins[id][s] = hash
	}
}

// restart starts the agent again.
func (n *node) restart() {
	for name := range n.unfinished {
		n.unfinished[name] = unresolved{since: time.Now()}
	}
	n.store, n.listed = open(n.T, n.root, preloaded), nil
	n.resolve()
}

// resolve ends pulls that ended without an answer, as the puller does before each pull and each use.
func (n *node) resolve() {
	for name, u := range n.unfinished {
		id := n.present[name]
		n.store.Resolve(n.Context(), name, id)
		switch {
		case id != "" && id != u.before:
			n.brought[id], n.added[id] = true, time.Now() // it may be
			delete(n.unfinished, name)
		case time.Since(u.since) >= Settle:
			delete(n.unfinished, name)
		}
	}
	want := slices.Sorted(maps.Keys(n.unfinished))
	if got := n.store.Unresolved(); !slices.Equal(got, want) {
		n.Errorf("unresolved pulls: got %q, want %q", got, want)
	}
	if got := slices.Sorted(slices.Values(n.store.intents())); !slices.Equal(got, want) {
		n.Errorf("intents: got %q, want those of the unresolved pulls, %q", got, want)
	}
}

// list has the runtime list its images.
func (n *node) list() {
	n.listed, n.requested = slices.Collect(maps.Values(n.present)), time.Now()
	time.Sleep(time.Nanosecond) // the clock of the test stands still otherwise
}

// prune removes the records of images that were not listed. The list may be older than what has happened since.
func (n *node) prune() {
	n.store.Prune(n.listed, n.requested)
	if len(n.listed) == 0 {
		return
	}
	for id := range n.brought {
		if !slices.Contains(n.listed, id) && !n.added[id].After(n.requested) {
			delete(n.brought, id)
			n.forget(id)
		}
	}
	n.listed = nil
}

// forget removes from the model who has opened an image.
func (n *node) forget(id string) {
	delete(n.logins, id)
	delete(n.open, id)
}

// damage writes over the record of an image. It then counts as pulled, and no credentials are known for it.
func (n *node) damage(name string) {
	id := n.present[name]
	if id == "" {
		return
	}
	text := []string{"", "{", `{"kind":"ImagePulledRecord"}`}[n.IntN(3)]
	if err := os.WriteFile(n.store.recordFile(id), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
	n.brought[id] = true
	n.forget(id)
}

// use lets a pod use an image that is present.
func (n *node) use(name string) {
	n.resolve()
	id := n.present[name]
	if id == "" {
		return
	}
	pod := n.login()
	_, mayCome := n.unfinished[name]
	others := !n.brought[id] && !mayCome
	want := others || n.open[id]
	object := pod.Secrets[0]
	object.CredentialHash = ""
	for known, hash := range n.logins[id] {
		want = want || known == object || hash == pod.Secrets[0].CredentialHash
	}
	got := allowed(n.T, n.store, name, id, pod)
	if got != want {
		n.Errorf("%s as %s: got allowed %t, want %t, with %v of %v", name, id, got, want, pod, n.logins[id])
	}
	if got && !others && !n.open[id] {
		n.grant(id, pod) // the store learns it
	}
}

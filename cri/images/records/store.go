package records

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/boundedfile"
	"github.com/nodelet/nodelet/internal/keylock"
)

// maxLearned is how many secrets a record may have before matching secrets are no longer added to it, as with the
// kubelet: otherwise a record would grow with each namespace that comes and goes.
const maxLearned = 100

// maxFile is the longest record that is read, in bytes; the largest that is written has some 100 KiB.
const maxFile = 4 << 20

// Settle is how long after the end of a pull without an answer its image may still appear: runtimes end the work of a
// call when its caller has gone.
const Settle = time.Minute

// errDamaged is a file that was read and makes no sense.
var errDamaged = errors.New("damaged file")

// Store is the directory of the records. It is safe for use by many goroutines. Create it with Open.
type Store struct {
	pulling, pulled string
	policy          policy
	log             *slog.Logger
	// images and refs are held while the intent of an image or the record of an ID is read or written.
	images, refs keylock.Keyed

	// pruning is held for reading while credentials are added to a record, and for writing while records are removed.
	pruning sync.RWMutex

	mu sync.Mutex
	// pulls is the number of pulls under way by image name.
	pulls map[string]int
	// begun are the images with an intent, and the target of each.
	begun map[string]target
	// added is when this process last added credentials to the record of an ID, also if the record had them.
	added map[string]time.Time
	// unresolved are the images that a pull may have brought without a record. Each of them has an intent.
	unresolved map[string]unresolved
}

// unresolved is a pull that ended without an answer: its pod, the process or the runtime ended meanwhile.
type unresolved struct {
	// since is when the pull ended, or the process started.
	since time.Time
	// before is the ID that the image had before the pull; empty if it had none, or that is not known.
	before string
}

// Open creates the directories of the records below rootDir. name and exempt are KubeletConfiguration
// imagePullCredentialsVerificationPolicy and preloadedImagesVerificationAllowlist.
func Open(rootDir, name string, exempt []string, log *slog.Logger) (*Store, error) {
	dir := filepath.Join(rootDir, "image_manager")
	s := &Store{
		pulling: filepath.Join(dir, "pulling"),
		pulled:  filepath.Join(dir, "pulled"),
		policy:  newPolicy(name, exempt),
		log:     log,
		pulls:   map[string]int{},
		begun:   map[string]target{},
		added:   map[string]time.Time{},

		unresolved: map[string]unresolved{},
	}
	for _, d := range []string{s.pulling, s.pulled} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of image pull records: %w", err)
		}
	}
	for _, image := range s.intents() {
		s.begun[image] = targetOf(image)
		s.unresolved[image] = unresolved{since: time.Now()}
	}
	return s, nil
}

// Begin records that a pull of an image begins. Each Begin without an error is followed by one call of Succeeded,
// Failed or Unknown.
func (s *Store) Begin(ctx context.Context, image string) error {
	unlock, err := s.images.Lock(ctx, image)
	if err != nil {
		return err
	}
	defer unlock()
	text := encode(intent{typeMeta{intentKind, group + "v1beta1"}, image})
	if err := atomicfile.WriteSynced(s.intentFile(image), text, 0o600); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulls[image]++
	s.begun[image] = targetOf(image)
	return nil
}

// Succeeded ends a pull that brought the image with the ID ref by the credentials. If that cannot be recorded, the pull
// counts as Unknown.
func (s *Store) Succeeded(ctx context.Context, image, ref string, c Credentials) {
	if err := s.Add(ctx, image, ref, c); err != nil {
		s.log.Warn("cannot record who pulled an image, pods need credentials for it again", "image", image, "err",
			err)
		s.Unknown(image, "")
		return
	}
	s.end(image)
	s.removeIntent(image)
}

// Failed ends a pull that brought no image.
func (s *Store) Failed(image string) {
	s.end(image)
	s.removeIntent(image)
}

// removeIntent removes the intent of an image, unless a pull of it is under way or unresolved.
func (s *Store) removeIntent(image string) {
	unlock, _ := s.images.Lock(context.Background(), image) // held for the time of a file operation
	defer unlock()
	if s.needsIntent(image) {
		return
	}
	if err := atomicfile.Remove(s.intentFile(image)); err != nil {
		s.log.Warn("cannot remove the record of a pull", "image", image, "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.begun, image)
}

// Unknown ends a pull that may or may not have brought the image, which had the ID before, or none if that is empty.
// The intent stays, and Unresolved has the image.
func (s *Store) Unknown(image, before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended(image)
	if u, ok := s.unresolved[image]; ok && u.before != before {
		before = "" // the other pull may have brought it
	}
	s.unresolved[image] = unresolved{time.Now(), before}
}

// end takes a pull off those under way.
func (s *Store) end(image string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended(image)
}

// ended does the same with s.mu held.
func (s *Store) ended(image string) {
	if s.pulls[image]--; s.pulls[image] <= 0 {
		delete(s.pulls, image)
	}
}

// needsIntent reports whether a pull of an image is under way or unresolved.
func (s *Store) needsIntent(image string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.unresolved[image]
	return open || s.pulls[image] > 0
}

// Unresolved returns the images that a pull may have brought without a record. Call Resolve for each.
func (s *Store) Unresolved() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.unresolved))
}

// intents lists the images with an intent, at the start.
func (s *Store) intents() []string {
	var all []string
	for _, name := range s.list(s.pulling) {
		var i intent
		if err := s.read(filepath.Join(s.pulling, name), &i, &i.typeMeta, intentKind); err != nil {
			s.log.Warn("cannot read the record of an unfinished pull", "err", err)
		} else {
			all = append(all, i.Image)
		}
	}
	return all
}

// Resolve ends a pull of which Unresolved has the image, if it is known what it has brought: the image has the ID ref
// now, or is not there if ref is empty. Who pulled a new image is not known. A pull that has brought none counts as
// failed after the time Settle.
func (s *Store) Resolve(ctx context.Context, image, ref string) {
	s.mu.Lock()
	u, open := s.unresolved[image]
	s.mu.Unlock()
	brought := ref != "" && ref != u.before
	if !open || !brought && time.Since(u.since) < Settle {
		return
	}
	if brought {
		if err := s.Add(ctx, image, ref, Credentials{}); err != nil {
			s.log.Warn("cannot record that an image was pulled, trying again when an image without a record is used",
				"image", image, "err", err)
			return
		}
	}
	s.mu.Lock()
	if s.unresolved[image] == u { // and no other pull has ended like this since
		delete(s.unresolved, image)
	}
	s.mu.Unlock()
	s.removeIntent(image)
}

// Add adds credentials to the record of the image with the ID ref. Empty ones say only that the image was pulled.
func (s *Store) Add(ctx context.Context, image, ref string, c Credentials) error {
	name, err := repository(image)
	if err != nil {
		return err
	}
	unlock, err := s.refs.Lock(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	s.pruning.RLock()
	defer s.pruning.RUnlock()
	s.mu.Lock()
	s.added[ref] = time.Now()
	s.mu.Unlock()
	r, err := s.get(ref)
	switch {
	case errors.Is(err, errDamaged):
		s.log.Warn("replacing a damaged record of an image, pods need credentials for it again", "image", image,
			"err", err)
	case err != nil:
		return err
	}
	merged, changed := r.CredentialMapping[name].merge(c)
	if r.ImageRef != "" && !changed {
		return nil
	}
	if r.CredentialMapping == nil {
		r.CredentialMapping = map[string]Credentials{}
	}
	if changed {
		r.CredentialMapping[name] = merged
	}
	r.typeMeta = typeMeta{recordKind, group + "v1beta1"}
	r.ImageRef, r.LastUpdatedTime = ref, metav1.Now()
	return atomicfile.WriteSynced(s.recordFile(ref), encode(r), 0o600)
}

// Allowed reports whether a pod may use an image that is present with the ID ref. credentials are the pod's; they are
// asked for only if the answer depends on them. It returns an error if the disk does not say now who pulled the image:
// a pull instead could make an image that no pull brought count as pulled.
func (s *Store) Allowed(ctx context.Context, image, ref string, credentials func() Credentials) (bool, error) {
	if !s.policy.requires(image, true) {
		return true, nil
	}
	begun, err := s.mayBePulled(image) // first: the record of a pull is written before its intent is removed
	if err != nil {
		return false, err
	}
	r, err := s.get(ref)
	damaged := errors.Is(err, errDamaged)
	if err != nil && !damaged {
		return false, fmt.Errorf("read the record of who pulled the image: %w", err)
	}
	if damaged {
		s.log.Warn("the record of an image is damaged, the pod needs credentials for it", "image", image,
			"err", err)
	}
	if !s.policy.requires(image, damaged || r.ImageRef != "" || begun) {
		return true, nil
	}
	name, err := repository(image)
	if err != nil {
		return false, nil // no pod can prove it; the pull says what is wrong with the name
	}
	known := r.CredentialMapping[name]
	if known.EveryPod || len(known.Secrets)+len(known.ServiceAccounts) == 0 {
		return known.EveryPod, nil
	}
	pod := credentials()
	secret, ok := known.secretOf(pod.Secrets)
	if ok && len(known.Secrets) < maxLearned {
		if err := s.Add(ctx, image, ref, Credentials{Secrets: []Secret{secret}}); err != nil {
			s.log.Warn("cannot record the pull secret of a pod that may use an image", "image", image, "err", err)
		}
	}
	return ok || known.accountOf(pod.ServiceAccounts), nil
}

// mayBePulled reports whether a pull has begun that may have brought the image, by this name or by another one.
func (s *Store) mayBePulled(image string) (bool, error) {
	if s.hasBegun(image) {
		return true, nil
	}
	_, err := os.Lstat(s.intentFile(image))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for an unfinished pull of the image: %w", err)
	}
	return err == nil, nil
}

// hasBegun reports whether an image has an intent whose pull may bring the one that is asked for. The ID of an image
// names neither repository nor tag: then any image counts.
func (s *Store) hasBegun(image string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isID(image) {
		return len(s.begun) > 0
	}
	asked := targetOf(image)
	return slices.ContainsFunc(slices.Collect(maps.Values(s.begun)), func(t target) bool { return t.mayBring(asked) })
}

// Recorded reports whether there is a record of the image with the ID ref.
func (s *Store) Recorded(ref string) bool {
	_, err := os.Lstat(s.recordFile(ref))
	return err == nil
}

// Enforced reports whether an image may be refused to a pod.
func (s *Store) Enforced() bool { return true }

// Prune removes the records of images that are not among the IDs refs, which were listed at the time requested.
func (s *Store) Prune(refs []string, requested time.Time) {
	if len(refs) == 0 {
		return // more likely a runtime that has not read its images yet; without records all would look preloaded
	}
	s.pruning.Lock()
	defer s.pruning.Unlock()
	keep := s.addedSince(requested)
	for _, ref := range refs {
		keep[fileName(ref)] = true
	}
	for _, name := range s.list(s.pulled) {
		if keep[name] {
			continue
		}
		if err := atomicfile.Remove(filepath.Join(s.pulled, name)); err != nil {
			s.log.Warn("cannot remove the record of an image that is gone", "err", err)
		}
	}
}

// addedSince returns the names of the records to which this process has added after a time, and forgets the others.
func (s *Store) addedSince(since time.Time) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]bool{}
	for ref, at := range s.added {
		if at.After(since) {
			names[fileName(ref)] = true
		} else {
			delete(s.added, ref)
		}
	}
	return names
}

func (s *Store) intentFile(image string) string { return filepath.Join(s.pulling, fileName(image)) }
func (s *Store) recordFile(ref string) string   { return filepath.Join(s.pulled, fileName(ref)) }

// get reads the record of an ID; the zero value where there is none. An error that is errDamaged comes with the zero
// value too.
func (s *Store) get(ref string) (record, error) {
	var r record
	err := s.read(s.recordFile(ref), &r, &r.typeMeta, recordKind)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return record{}, nil
	case err != nil:
		return record{}, err
	case r.ImageRef != ref:
		return record{}, fmt.Errorf("%s: %w: it belongs to %q", s.recordFile(ref), errDamaged, r.ImageRef)
	}
	return r, nil
}

func (s *Store) read(path string, into any, meta *typeMeta, kind string) error {
	text, err := boundedfile.Read(path, maxFile)
	switch {
	case errors.Is(err, boundedfile.ErrTooLarge):
		return fmt.Errorf("%w: %w", errDamaged, err)
	case err != nil:
		return err
	}
	if err = decode(text, into); err == nil {
		err = meta.check(kind)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	return nil
}

// list returns the names of the records in a directory, without files under construction.
func (s *Store) list(dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.log.Warn("cannot list the records of image pulls", "err", err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, filePrefix) && !strings.HasSuffix(name, ".tmp") {
			names = append(names, name)
		}
	}
	return names
}

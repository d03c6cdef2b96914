package provider

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nodelet/nodelet/cri/images"
)

// maxAnswers bounds the answers of a provider that are kept; pods choose for which registries there are any.
const maxAnswers = 1000

// cache has the answers of one provider until they expire. The zero value is empty.
type cache struct {
	mu      sync.Mutex
	answers map[string]answer
}

// answer has times of the wall clock: the monotonic one stands still while the machine is suspended.
type answer struct {
	logins      map[string]*images.Login
	kept, until time.Time
}

// counts reports whether the answer has not expired. If the clock was set back, that is not known.
func (a answer) counts(now time.Time) bool { return !now.Before(a.kept) && now.Before(a.until) }

// key identifies an answer by its scope and its identity.
func key(scope string, who identity) string { return scope + "\n" + who.key }

// find returns an answer for a repository, the most specific first.
func (c *cache) find(who identity, repository string, now time.Time) (map[string]*images.Login, bool) {
	now = now.Round(0) // the wall clock
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, scope := range []string{repository, registryOf(repository), everywhere} {
		if a, ok := c.answers[key(scope, who)]; ok && a.counts(now) {
			return a.logins, true
		}
	}
	return nil, false
}

// keep adds an answer that counts for the time hold. It removes those that have expired, and the one that would expire
// first if there are too many.
func (c *cache) keep(key string, logins map[string]*images.Login, now time.Time, hold time.Duration) {
	if hold <= 0 {
		return
	}
	now = now.Round(0) // the wall clock
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.answers, func(_ string, a answer) bool { return !a.counts(now) })
	if len(c.answers) >= maxAnswers {
		delete(c.answers, slices.MinFunc(slices.Collect(maps.Keys(c.answers)), func(a, b string) int {
			return c.answers[a].until.Compare(c.answers[b].until)
		}))
	}
	if c.answers == nil {
		c.answers = map[string]answer{}
	}
	c.answers[key] = answer{logins, now, now.Add(hold)}
}

package podfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// apiAccess is the volume that every pod gets.
func apiAccess() corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(0o644)),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3607))}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
		},
	}}
}

func accessObjects(now func() time.Time) *objects {
	o := testObjects()
	o.configMaps["shop/kube-root-ca.crt"] = &corev1.ConfigMap{Data: map[string]string{"ca.crt": "CA"}}
	o.issue = issueAt(now)
	return o
}

func TestProjected(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o := accessObjects(func() time.Time { return testNow })
	r := request(pod, "kube-api-access", apiAccess())
	m := mustMount(t, v, r, o)
	token, _, _ := o.issue(pod, "", 3607)
	wantFiles(t, m.HostPath, map[string]string{"token": token, "ca.crt": "CA", "namespace": "shop"})
	if !isTmpfs(t, m.HostPath) || !m.ReadOnly || !m.SELinuxRelabel {
		t.Errorf("got %+v on tmpfs: %v", m, isTmpfs(t, m.HostPath))
	}
	if got := m.RefreshAt.Sub(testNow); got > 2886*time.Second || got < 2875*time.Second {
		t.Errorf("refresh after %v, want 80%% of 3607 s, less 10 s at most", got)
	}
}

func TestLaterSourceWins(t *testing.T) {
	t.Parallel()
	v, o := newVolumes(t), testObjects()
	secret := corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cred"},
		Items:                []corev1.KeyToPath{{Key: "user", Path: "x/y"}}}}
	cm := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cfg"},
		Items:                []corev1.KeyToPath{{Key: "a.conf", Path: "x//y"}}}}
	for want, sources := range map[string][]corev1.VolumeProjection{"A": {secret, cm}, "me": {cm, secret}} {
		r := request(testPod(), "p"+want[:1], corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}})
		r.Volume.Name = strings.ToLower(r.Volume.Name)
		wantFiles(t, mustMount(t, v, r, o).HostPath, map[string]string{"x/y": want})
	}
}

func TestProjectedErrorsAreCollected(t *testing.T) {
	t.Parallel()
	v, o := newVolumes(t), accessObjects(func() time.Time { return testNow })
	delete(o.configMaps, "shop/kube-root-ca.crt")
	r := request(testPod(), "p", apiAccess())
	r.Volume.Projected.Sources[2].DownwardAPI.Items[0].FieldRef.FieldPath = "status.podIP"
	_, err := v.Mount(t.Context(), r, o)
	want := `MountVolume.SetUp failed for volume "p" : ` +
		`[configmap "kube-root-ca.crt" not found, unsupported fieldPath: status.podIP]`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	if o.tokens != 0 {
		t.Error("another source is missing: got a request for a token, want none")
	}
	if uids, _ := v.Pods(); len(uids) != 0 {
		t.Errorf("pods directory after an early failure: got %v, want it empty", uids)
	}
}

// TestFileUsers checks that the user of an item owns its file, and that of the volume the others.
func TestFileUsers(t *testing.T) {
	t.Parallel()
	v, o := newVolumes(t), accessObjects(func() time.Time { return testNow })
	pod := testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(7))}
	wants := func(source corev1.VolumeSource, name string, want map[string]uint32) {
		t.Helper()
		m := mustMount(t, v, request(pod, name, source), o)
		for file, uid := range want {
			if st := statPath(t, filepath.Join(m.HostPath, "..data", file)); st.Uid != uid {
				t.Errorf("%s of volume %s: got owner %d, want %d", file, name, st.Uid, uid)
			}
		}
	}
	user := new(int64(5))
	wants(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred", DefaultUser: user}}, "all",
		map[string]uint32{"user": 5, "pass": 5})
	wants(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cfg"},
		Items:                []corev1.KeyToPath{{Key: "a.conf", Path: "a", User: new(int64(6))}, {Key: "b.conf", Path: "b"}},
		DefaultUser:          user,
	}}, "items", map[string]uint32{"a": 6, "b": 5})
	wants(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
		{Path: "own", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}, User: new(int64(6))},
		{Path: "none", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
	}}}, "downward", map[string]uint32{"own": 6, "none": 0})
	projected := apiAccess()
	wants(projected, "run", map[string]uint32{"token": 7, "ca.crt": 0})
	projected.Projected.DefaultUser = user
	wants(projected, "default", map[string]uint32{"token": 5, "ca.crt": 5, "namespace": 5})
	projected.Projected.Sources[0].ServiceAccountToken.User = new(int64(0))
	wants(projected, "token", map[string]uint32{"token": 0, "ca.crt": 5})
}

func TestTokenOwner(t *testing.T) {
	t.Parallel()
	user := func(uid int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &uid} }
	tests := map[string]struct {
		pod        *corev1.PodSecurityContext
		containers []*corev1.SecurityContext
		uid, gid   uint32
		mode       uint32
	}{
		"nothing set": {nil, []*corev1.SecurityContext{nil}, 0, 0, 0o644},
		"user of pod": {&corev1.PodSecurityContext{RunAsUser: new(int64(7))}, []*corev1.SecurityContext{nil, {}}, 7, 0,
			0o600},
		"user of all":     {nil, []*corev1.SecurityContext{user(8), user(8)}, 8, 0, 0o600},
		"user of some":    {nil, []*corev1.SecurityContext{user(8), nil}, 0, 0, 0o644},
		"different users": {nil, []*corev1.SecurityContext{user(8), user(9)}, 0, 0, 0o644},
		"one overrides": {&corev1.PodSecurityContext{RunAsUser: new(int64(7))}, []*corev1.SecurityContext{user(8), nil},
			0, 0, 0o644},
		"fsGroup": {&corev1.PodSecurityContext{FSGroup: new(int64(5))}, []*corev1.SecurityContext{nil}, 0, 5,
			0o640},
		"fsGroup with user": {&corev1.PodSecurityContext{FSGroup: new(int64(5))}, []*corev1.SecurityContext{user(8)}, 8, 5,
			0o640},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), testPod()
			pod.Spec.SecurityContext = tt.pod
			pod.Spec.Containers = nil
			for i, sc := range tt.containers {
				if i == 0 {
					pod.Spec.InitContainers = []corev1.Container{{Name: "init", SecurityContext: sc}}
					pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
						EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}
				}
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{SecurityContext: sc})
			}
			m := mustMount(t, v, request(pod, "p", apiAccess()), accessObjects(func() time.Time { return testNow }))
			st := statPath(t, filepath.Join(m.HostPath, "..data", "token"))
			if st.Uid != tt.uid || st.Gid != tt.gid || st.Mode&0o7777 != tt.mode {
				t.Errorf("token belongs to %d:%d with mode %o, want %d:%d %o",
					st.Uid, st.Gid, st.Mode&0o7777, tt.uid, tt.gid, tt.mode)
			}
			ca := statPath(t, filepath.Join(m.HostPath, "..data", "ca.crt"))
			if ca.Uid != 0 || ca.Mode&0o7777 != 0o644 {
				t.Errorf("certificate belongs to %d with mode %o, want 0 644", ca.Uid, ca.Mode&0o7777)
			}
		})
	}
}

// TestTokenSurvivesRestart checks that a new agent, with nothing in memory, keeps the token on disk until it is due.
func TestTokenSurvivesRestart(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	now := testNow
	o := accessObjects(func() time.Time { return now })
	r := request(pod, "p", apiAccess())
	first := mustMount(t, v, r, o)

	restarted, err := New(Config{Log: discard, Root: filepath.Dir(v.podsDir)})
	if err != nil {
		t.Fatal(err)
	}
	restarted.started = testNow // the token is almost new
	mount := func(at time.Time, tokens int, changed bool) Mounted {
		t.Helper()
		now, r.Now = at, at
		before := shown(t, first)
		m := mustMount(t, restarted, r, o)
		if got := shown(t, m) != before; o.tokens != tokens || got != changed {
			t.Errorf("%v later: got %d tokens requested, changed %v, want %d, %v", at.Sub(testNow), o.tokens, got, tokens,
				changed)
		}
		return m
	}
	if m := mount(testNow.Add(time.Minute), 1, false); m.RefreshAt != first.RefreshAt {
		t.Errorf("refresh at %v, want %v as before", m.RefreshAt, first.RefreshAt)
	}
	// Other content is refreshed without a new token.
	o.configMaps["shop/kube-root-ca.crt"].Data["ca.crt"] = "CA 2"
	mount(testNow.Add(2*time.Minute), 1, true)
	mount(first.RefreshAt.Add(-time.Second), 1, false)
	m := mount(first.RefreshAt, 2, true)
	if got := m.RefreshAt.Sub(now); got < 2875*time.Second {
		t.Errorf("new token: got refresh after %v, want at least %v", got, 2875*time.Second)
	}
	// A clock set back far: what the token says cannot be trusted.
	mount(testNow.Add(-time.Hour), 3, true)
}

// TestTokenOfEarlierRun checks that a token is renewed in the first minutes after a restart of the agent, as a kubelet
// does at once: the API server may accept it no more. It is not if it is almost new, and as long as the API server is
// away the old one stays.
func TestTokenOfEarlierRun(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	now, away := testNow, false
	o := accessObjects(func() time.Time { return now })
	issue := o.issue
	o.issue = func(pod *corev1.Pod, audience string, seconds int64) (string, time.Time, error) {
		if away {
			return "", time.Time{}, errors.New("connection refused")
		}
		return issue(pod, audience, seconds)
	}
	volume := apiAccess()
	volume.Projected.Sources[0].ServiceAccountToken.ExpirationSeconds = new(int64(86400))
	r := request(pod, "p", volume)
	var before string
	mount := func(at time.Time, tokens int, changed bool, refresh, latest time.Duration) time.Time {
		t.Helper()
		defer func() { r.Refresh = true }()
		now, r.Now = at, at
		m := mustMount(t, v, r, o)
		after := shown(t, m)
		if got := after != before; o.tokens != tokens || got != changed {
			t.Errorf("%s later: got %d tokens requested, changed %t, want %d, %t", at.Sub(testNow), o.tokens, got,
				tokens, changed)
		}
		before = after
		if got := m.RefreshAt.Sub(at); got < refresh || got > latest {
			t.Errorf("%s later: got refresh after %s, want %s to %s", at.Sub(testNow), got, refresh, latest)
		}
		return m.RefreshAt
	}
	const most = 19 * time.Hour // of the lifetime
	v.started = testNow.Add(-time.Minute)
	mount(testNow, 1, true, most, 20*time.Hour)
	v.started, r.Refresh = testNow.Add(time.Hour), false
	due := mount(v.started.Add(20*time.Minute), 1, false, time.Minute, 6*time.Minute)
	away = true
	due = mount(due, 2, false, 4*time.Minute, 6*time.Minute)
	away = false
	renewed := mount(due, 3, true, most, 20*time.Hour)
	v.started, r.Refresh = due.Add(9*time.Minute), false
	if again := mount(v.started, 3, false, most-time.Hour, 20*time.Hour); !again.Equal(renewed) {
		t.Errorf("almost new: got refresh at %s, want %s as before", again, renewed)
	}
	v.started, r.Refresh = due.Add(11*time.Minute), false
	due = mount(v.started, 3, false, time.Minute, 6*time.Minute)
	mount(due, 4, true, most, 20*time.Hour)
}

// TestTokenOfSlowClock checks that a node whose clock is behind renews a token before it expires by the clock of the
// API server, also after a restart of the agent.
func TestTokenOfSlowClock(t *testing.T) {
	t.Parallel()
	const behind = 9 * time.Minute
	v, pod := newVolumes(t), testPod()
	now := testNow
	o := accessObjects(func() time.Time { return now.Add(behind) })
	volume := apiAccess()
	volume.Projected.Sources[0].ServiceAccountToken.ExpirationSeconds = new(int64(600))
	r := request(pod, "p", volume)
	mount := func(at time.Duration, tokens int) Mounted {
		t.Helper()
		now = testNow.Add(at)
		r.Now = now
		m := mustMount(t, v, r, o)
		if o.tokens != tokens {
			t.Errorf("%v after the first token: got %d requests, want %d", at, o.tokens, tokens)
		}
		return m
	}
	first := mount(0, 1)
	// The token survives a change of other content, with the time at which it was received.
	o.configMaps["shop/kube-root-ca.crt"].Data["ca.crt"] = "CA 2"
	if m := mount(5*time.Minute, 1); m.RefreshAt != first.RefreshAt {
		t.Errorf("got refresh at %v, want %v as before", m.RefreshAt, first.RefreshAt)
	}
	if ca, err := os.ReadFile(filepath.Join(first.HostPath, "ca.crt")); err != nil || string(ca) != "CA 2" {
		t.Errorf("certificate: got %q, %v, want the new one", ca, err)
	}
	mount(first.RefreshAt.Sub(testNow)-time.Second, 1)
	mount(first.RefreshAt.Sub(testNow), 2)
	mount(first.RefreshAt.Sub(testNow)-time.Minute, 3) // the clock was set back a little
}

func TestTokenOfOtherPodOrAudienceIsNotKept(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *Request){
		"recreated pod":   func(r *Request) { r.Pod.UID = "other" },
		"service account": func(r *Request) { r.Pod.Spec.ServiceAccountName = "other" },
		"namespace":       func(r *Request) { r.Pod.Namespace = "other" },
		"audience":        func(r *Request) { r.Volume.Projected.Sources[0].ServiceAccountToken.Audience = "vault" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolumes(t)
			o := accessObjects(func() time.Time { return testNow })
			r := request(testPod(), "p", apiAccess())
			m := mustMount(t, v, r, o)
			changed := request(testPod(), "p", apiAccess())
			change(&changed)
			o.configMaps["other/kube-root-ca.crt"] = o.configMaps["shop/kube-root-ca.crt"]
			other := filepath.Join(v.podsDir, string(changed.Pod.UID))
			if changed.Pod.UID != r.Pod.UID { // the token of one pod is mounted below another
				target := filepath.Join(other, OnDisk{pluginname.Projected, "p"}.path())
				if err := os.MkdirAll(target, 0o750); err != nil {
					t.Fatal(err)
				}
				bindMount(t, m.HostPath, target)
			}
			mustMount(t, v, changed, o)
			if o.tokens != 2 {
				t.Errorf("got %d tokens requested, want 2", o.tokens)
			}
		})
	}
}

func TestTokenAPIFails(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	now := testNow
	o := accessObjects(func() time.Time { return now })
	issue := o.issue
	down := errors.New("connection refused")
	o.issue = func(*corev1.Pod, string, int64) (string, time.Time, error) { return "", time.Time{}, down }
	r := request(pod, "p", apiAccess())
	if _, err := v.Mount(t.Context(), r, o); !errors.Is(err, down) ||
		!strings.Contains(err.Error(), "failed to fetch token") {
		t.Errorf("got %v", err)
	}
	o.issue = issue
	m := mustMount(t, v, r, o)

	o.issue = func(*corev1.Pod, string, int64) (string, time.Time, error) { return "", time.Time{}, down }
	r.Now = m.RefreshAt
	before := shown(t, m)
	kept := mustMount(t, v, r, o)
	if shown(t, kept) != before || kept.RefreshAt != r.Now.Add(time.Minute) {
		t.Errorf("got %+v, want the old token and another try in a minute", kept)
	}
	r.Now = testNow.Add(3607 * time.Second)
	if _, err := v.Mount(t.Context(), r, o); !errors.Is(err, down) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("got %v, want an error about the expired token", err)
	}
	if o.tokens != 4 {
		t.Errorf("got %d requests, want 4", o.tokens)
	}
}

// TestMountPointsBeforeToken checks that no token is requested for a volume that may not have its mount points.
func TestMountPointsBeforeToken(t *testing.T) {
	t.Parallel()
	for want, paths := range map[string][]string{"and may have 32Mi": deep(9, 1000), "file name too long": deep(1, 4000)} {
		v, pod := newVolumes(t), testPod()
		o := &objects{issue: issueAt(func() time.Time { return testNow })}
		mounts := []corev1.VolumeMount{{Name: "vol", MountPath: "/v"}}
		for _, path := range paths {
			mounts = append(mounts, corev1.VolumeMount{Name: "other", MountPath: "/v/" + path})
		}
		pod.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: mounts}}
		token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
		source := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{token}}
		_, err := v.Mount(t.Context(), request(pod, "vol", corev1.VolumeSource{Projected: source}), o)
		if err == nil || !strings.Contains(err.Error(), want) || o.tokens != 0 {
			t.Errorf("got error %v and %d tokens requested, want %q and none", err, o.tokens, want)
		}
	}
}

// TestOpaqueToken checks that a token that says nothing about itself is renewed by what came with it.
func TestOpaqueToken(t *testing.T) {
	t.Parallel()
	v, o := newVolumes(t), accessObjects(nil)
	o.issue = func(_ *corev1.Pod, _ string, seconds int64) (string, time.Time, error) {
		return "opaque", testNow.Add(time.Duration(seconds) * time.Second), nil
	}
	m := mustMount(t, v, request(testPod(), "p", apiAccess()), o)
	if got := m.RefreshAt.Sub(testNow); got > 2886*time.Second || got < 2875*time.Second {
		t.Errorf("refresh: got after %v, want after 2875s to 2886s", got)
	}
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	iat := testNow
	claim := func(expires, warn time.Duration) claims {
		c := claims{issued: iat, expires: iat.Add(expires)}
		if warn != 0 {
			c.warnAfter = iat.Add(warn)
		}
		return c
	}
	const h = time.Hour
	tests := map[string]struct {
		c    claims
		now  time.Duration // after iat
		due  bool
		next time.Duration // after now
	}{
		"fresh":                       {claim(h, 0), 0, false, 48 * time.Minute},
		"shortly before":              {claim(h, 0), 47*time.Minute + 59*time.Second, false, time.Minute},
		"at 80 %":                     {claim(h, 0), 48 * time.Minute, true, time.Minute},
		"extended beyond its warning": {claim(365*24*h, h), 0, false, 48 * time.Minute},
		"extended, due":               {claim(365*24*h, h), 50 * time.Minute, true, time.Minute},
		"long-lived":                  {claim(30*24*h, 0), 0, false, 24 * h},
		"clock behind a little":       {claim(h, 0), -5 * time.Minute, false, 48 * time.Minute},
		"clock set back":              {claim(h, 0), -11 * time.Minute, true, 48 * time.Minute},
		"clock ahead: no hectic rate": {claim(h, 0), 5 * h, true, time.Minute},
		"shorter than the jitter":     {claim(10*time.Second, 0), 0, false, time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			now := iat.Add(tt.now)
			if got := tt.c.due(now, 0); got != tt.due {
				t.Errorf("due: got %v, want %v", got, tt.due)
			}
			if got := tt.c.refreshAt(now, 0).Sub(now); got != tt.next {
				t.Errorf("refresh after %v, want %v", got, tt.next)
			}
		})
	}
	if got := claim(h, 0).renewal(7 * time.Second); got != iat.Add(48*time.Minute-7*time.Second) {
		t.Errorf("renewal with jitter: got after %v, want after 47m53s", got.Sub(iat))
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Mount(ctx, request(testPod(), "p", apiAccess()), accessObjects(nil)); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	projected := func(p corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{p}}}
	}
	tests := map[string]corev1.VolumeSource{
		"gitRepo":                     {GitRepo: &corev1.GitRepoVolumeSource{}},
		"kind fc":                     {FC: &corev1.FCVolumeSource{}},
		"CSI driver rbd.csi.ceph.com": {RBD: &corev1.RBDVolumeSource{}},
		"kind (none known":            {},
		"source 0: kind (none known":  projected(corev1.VolumeProjection{}),
	}
	for want, source := range tests {
		_, err := v.Mount(t.Context(), request(testPod(), "vol", source), testObjects())
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), `"vol"`) {
			t.Errorf("got %v, want unsupported %s", err, want)
		}
		if err := Supported(&corev1.Volume{Name: "vol", VolumeSource: source}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("Supported(%s): got %v, want ErrUnsupported", want, err)
		}
	}
	if m, err := v.Mount(t.Context(), request(testPod(), "img", corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{}}), nil); err != nil || !m.ReadOnly || m.HostPath != "" {
		t.Errorf("image volume: got %+v, %v, want it read-only and without a path", m, err)
	}
}

package agent_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestSecretsStayOutOfTheLog checks that no value of a Secret, no password of a registry and no token comes into the
// log or an event, at whatever level and whatever fails (CVE-2019-11250, CVE-2020-8564, CVE-2020-8565).
func TestSecretsStayOutOfTheLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const value, password = "v4lue-of-a-secret", "p4ssword-of-a-registry"
		w.runtime.AddImage(fake.RemoteImage{Name: "registry.example/private:1", Logins: map[string]string{"me": "another"}})
		pod := staticPod("a", "uid-a", func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}, Key: "key"}}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: "/files"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "files", VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}}}
			pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "login"}, {Name: "broken"}}
			first := container("first")
			first.Image = "registry.example/private:1"
			first.ImagePullPolicy = corev1.PullAlways
			pod.Spec.InitContainers = []corev1.Container{first}
		})
		w.change(func(set *pods.Set) {
			set.Pods[pod.UID] = pod
			set.Secrets = map[types.NamespacedName]*corev1.Secret{}
			for _, s := range []*corev1.Secret{
				secret("secret", corev1.SecretTypeOpaque, "key", value),
				secret("login", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
					`{"auths":{"registry.example":{"username":"me","password":"`+password+`"}}}`),
				secret("broken", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, `{"auths": "`+password),
			} {
				set.Secrets[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
			}
		})
		w.sleep(time.Minute)
		pod2 := staticPod("b", "uid-b", func(other *corev1.Pod) {
			other.Spec = *pod.Spec.DeepCopy()
			other.Spec.InitContainers = nil
			other.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(-1))} // cannot be made
		})
		w.run(pod2)
		w.sleep(time.Minute)
		w.delete(pod, 0)
		w.delete(pod2, 0)
		w.sleep(time.Minute)
		log := w.everythingLogged()
		if !strings.Contains(log, "private:1") {
			t.Errorf("log: want a line about the pull of private:1, got\n%s", log)
		}
		for _, s := range []string{value, password} {
			if strings.Contains(log, s) {
				t.Errorf("the log has the secret %q, want it nowhere:\n%s", s, log)
			}
		}
	})
}

func secret(name string, kind corev1.SecretType, key, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: kind,
		Data: map[string][]byte{key: []byte(value)}}
}

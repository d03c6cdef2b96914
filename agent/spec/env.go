package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// Objects are the API objects and files that the environment of a container comes from.
type Objects struct {
	// ConfigMaps and Secrets are those of the pod's namespace, by name. One that is not in the map does not exist in
	// the API: the caller calls Container only after it has looked up all objects.
	ConfigMaps map[string]*corev1.ConfigMap
	Secrets    map[string]*corev1.Secret
	// Services are those of the pod's namespace, and default/kubernetes.
	Services []*corev1.Service
	// EnvFiles are the contents of the files that the function EnvFiles lists. A file that is not in the map does not
	// exist.
	EnvFiles map[EnvFile][]byte
}

// environment is a set of variables, in the order in which they were first set.
type environment struct {
	names  []string
	values map[string]string
	// size is that of all names and values, limit its bound.
	size, limit int
}

func newEnvironment(limit int) *environment {
	return &environment{values: map[string]string{}, limit: limit}
}

// set sets a variable. It is an error if the environment is larger than its limit then.
func (e *environment) set(name, value string) error {
	before, ok := e.values[name]
	if !ok {
		e.names = append(e.names, name)
		e.size += len(name)
	}
	e.values[name] = value
	if e.size += len(value) - len(before); e.size > e.limit {
		return fmt.Errorf("with %s the environment has more than %d bytes, which no process can have", name, e.limit)
	}
	return nil
}

// variables returns the container's environment: the variables of device plugins, then envFrom, then env, and last
// the service variables that no other source has set. Within one source the order is that of the spec; maps are
// sorted by key.
func variables(in *ContainerInput) ([]*runtimeapi.KeyValue, error) {
	links, err := serviceVariables(in.Pod, in.Objects.Services, in.limit())
	if err != nil {
		return nil, err
	}
	env := newEnvironment(in.limit())
	if err := addFrom(env, in); err != nil {
		return nil, err
	}
	lookup := func(name string) (string, bool) {
		if value, ok := env.values[name]; ok {
			return value, true
		}
		value, ok := links[name]
		return value, ok
	}
	for i := range in.Container.Env {
		v := &in.Container.Env[i]
		value, err := envValue(in, v, lookup)
		if err == nil {
			err = env.set(v.Name, value)
		}
		if err != nil && !errors.Is(err, errSkip) {
			return nil, err
		}
	}
	maps.DeleteFunc(links, func(name, _ string) bool {
		_, ok := env.values[name]
		return ok
	})
	if err := setAll(env, "", links); err != nil {
		return nil, err
	}
	out := slices.Clone(in.Devices.Envs)
	for _, name := range env.names {
		out = append(out, &runtimeapi.KeyValue{Key: name, Value: []byte(env.values[name])})
	}
	return out, checkVariables(out)
}

// checkVariables rejects variables that cannot be part of a process's environment: NUL ends a string, = ends a name.
func checkVariables(vars []*runtimeapi.KeyValue) error {
	for _, v := range vars {
		if v.Key == "" || strings.ContainsAny(v.Key, "=\x00") {
			return fmt.Errorf("environment variable name %q is empty or contains = or a NUL byte", v.Key)
		}
		if slices.Contains(v.Value, 0) {
			return fmt.Errorf("environment variable %s contains a NUL byte; mount binary data as a file instead", v.Key)
		}
	}
	return nil
}

// addFrom adds the variables of envFrom. A later source overrides an earlier one.
func addFrom(env *environment, in *ContainerInput) error {
	for _, from := range in.Container.EnvFrom {
		var err error
		if ref := from.ConfigMapRef; ref != nil {
			if cm := in.Objects.ConfigMaps[ref.Name]; cm != nil {
				err = setAll(env, from.Prefix, cm.Data)
			} else {
				err = missing(ref.Optional, notFound("configmap", ref.Name))
			}
		} else if ref := from.SecretRef; ref != nil {
			if secret := in.Objects.Secrets[ref.Name]; secret != nil {
				err = setAll(env, from.Prefix, secret.Data)
			} else {
				err = missing(ref.Optional, notFound("secret", ref.Name))
			}
		}
		if err != nil && !errors.Is(err, errSkip) {
			return err
		}
	}
	return nil
}

// setAll sets a variable for each key of an object, in the order of the keys.
func setAll[V string | []byte](env *environment, prefix string, data map[string]V) error {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if err := env.set(prefix+key, string(data[key])); err != nil {
			return err
		}
	}
	return nil
}

// errSkip means that an optional source is missing, so its variable is not set.
var errSkip = errors.New("optional source is missing")

// envValue returns the value of one entry of env. lookup finds the variables that were set before it, for references in
// the value.
func envValue(in *ContainerInput, v *corev1.EnvVar, lookup func(string) (string, bool)) (string, error) {
	if v.Value != "" || v.ValueFrom == nil {
		value, err := Expand(v.Value, in.limit(), lookup)
		if err != nil {
			return "", fmt.Errorf("environment variable %s: %w", v.Name, err)
		}
		return value, nil
	}
	switch from := v.ValueFrom; {
	case from.FieldRef != nil:
		return fieldValue(in, from.FieldRef)
	case from.ResourceFieldRef != nil:
		return resourceFieldValue(in, from.ResourceFieldRef)
	case from.ConfigMapKeyRef != nil:
		return configMapValue(in, from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return secretValue(in, from.SecretKeyRef)
	case from.FileKeyRef != nil:
		return fileValue(in, from.FileKeyRef)
	}
	return "", fmt.Errorf("environment variable %s: valueFrom has no known source", v.Name)
}

func configMapValue(in *ContainerInput, ref *corev1.ConfigMapKeySelector) (string, error) {
	cm := in.Objects.ConfigMaps[ref.Name]
	if cm == nil {
		return "", missing(ref.Optional, notFound("configmap", ref.Name))
	}
	return keyValue(cm.Data, ref.Key, ref.Optional, "ConfigMap "+in.Pod.Namespace+"/"+ref.Name)
}

func secretValue(in *ContainerInput, ref *corev1.SecretKeySelector) (string, error) {
	secret := in.Objects.Secrets[ref.Name]
	if secret == nil {
		return "", missing(ref.Optional, notFound("secret", ref.Name))
	}
	return keyValue(secret.Data, ref.Key, ref.Optional, "Secret "+in.Pod.Namespace+"/"+ref.Name)
}

// keyValue returns the value of a key of an object.
func keyValue[V string | []byte](data map[string]V, key string, optional *bool, object string) (string, error) {
	value, ok := data[key]
	if !ok {
		return "", missing(optional, fmt.Errorf("couldn't find key %v in %s", key, object))
	}
	return string(value), nil
}

// missing returns errSkip if the missing source is optional, and err otherwise.
func missing(optional *bool, err error) error {
	if ptr.Deref(optional, false) {
		return errSkip
	}
	return err
}

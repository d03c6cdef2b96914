package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func (c *checker) allContainers(spec *field.Path) {
	s := &c.pod.Spec
	if len(s.Containers) == 0 {
		c.add(field.Required(spec.Child("containers"), "a pod needs a container"))
	}
	names := map[string]bool{}
	hostPorts := map[string]bool{}
	for i := range s.Containers {
		p := spec.Child("containers").Index(i)
		c.container(p, &s.Containers[i], names)
		c.hostPorts(p.Child("ports"), s.Containers[i].Ports, hostPorts)
		c.hostNetworkPorts(p.Child("ports"), s.Containers[i].Ports)
		c.startAndStop(p, &s.Containers[i])
		c.restartRules(p, &s.Containers[i])
	}
	for i := range s.InitContainers {
		p := spec.Child("initContainers").Index(i)
		c.initContainer(p, &s.InitContainers[i], names)
	}
}

func (c *checker) initContainer(p *field.Path, ct *corev1.Container, names map[string]bool) {
	c.container(p, ct, names)
	c.hostPorts(p.Child("ports"), ct.Ports, map[string]bool{}) // init containers run one after the other
	c.restartRules(p, ct)
	if podutil.IsSidecar(ct) {
		c.startAndStop(p, ct)
		return
	}
	for name, set := range map[string]bool{
		"lifecycle": ct.Lifecycle != nil, "livenessProbe": ct.LivenessProbe != nil,
		"readinessProbe": ct.ReadinessProbe != nil, "startupProbe": ct.StartupProbe != nil,
	} {
		if set {
			c.add(field.Forbidden(p.Child(name), "an init container may only have it with restartPolicy: Always"))
		}
	}
	for i, r := range ct.ResizePolicy {
		if r.RestartPolicy == corev1.RestartContainer {
			c.add(field.Invalid(p.Child("resizePolicy").Index(i).Child("restartPolicy"), r.RestartPolicy,
				"must be NotRequired in an init container without restartPolicy: Always"))
		}
	}
}

// container checks the fields that containers of all kinds have.
func (c *checker) container(p *field.Path, ct *corev1.Container, names map[string]bool) {
	if c.required(p.Child("name"), ct.Name) {
		c.texts(p.Child("name"), ct.Name, validation.IsDNS1123Label(ct.Name))
		if names[ct.Name] {
			c.add(field.Duplicate(p.Child("name"), ct.Name))
		}
		names[ct.Name] = true
	}
	if c.required(p.Child("image"), ct.Image) && strings.TrimSpace(ct.Image) != ct.Image {
		c.add(field.Invalid(p.Child("image"), ct.Image, "must not have leading or trailing white space"))
	}
	c.pullPolicy(p.Child("imagePullPolicy"), ct.ImagePullPolicy)
	oneOf(c.findings, p.Child("terminationMessagePolicy"), ct.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	c.ports(p.Child("ports"), ct.Ports)
	c.env(p, ct)
	c.mounts(p.Child("volumeMounts"), ct)
	c.devices(p.Child("volumeDevices"), ct)
	c.resources(p.Child("resources"), &ct.Resources)
	c.resizePolicy(p.Child("resizePolicy"), ct.ResizePolicy)
	c.containerSecurity(p.Child("securityContext"), ct.SecurityContext)
}

func (f *findings) pullPolicy(p *field.Path, policy corev1.PullPolicy) {
	oneOf(f, p, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

func (c *checker) ports(p *field.Path, ports []corev1.ContainerPort) {
	names := map[string]bool{}
	for i, port := range ports {
		pp := p.Index(i)
		if port.Name != "" {
			c.texts(pp.Child("name"), port.Name, validation.IsValidPortName(port.Name))
			if names[port.Name] {
				c.add(field.Duplicate(pp.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		c.between(pp.Child("containerPort"), int64(port.ContainerPort), 1, 65535)
		if port.HostPort != 0 {
			c.between(pp.Child("hostPort"), int64(port.HostPort), 1, 65535)
			c.hostIP(pp.Child("hostIP"), port.HostIP)
		}
		oneOf(c.findings, pp.Child("protocol"), port.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	}
}

func (c *checker) hostPorts(p *field.Path, ports []corev1.ContainerPort, taken map[string]bool) {
	for i, port := range ports {
		if port.HostPort == 0 {
			continue
		}
		k := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
		if taken[k] {
			c.add(field.Duplicate(p.Index(i).Child("hostPort"), k))
		}
		taken[k] = true
	}
}

// hostNetworkPorts checks the ports of an app container. Those of init containers may differ, as with the kubelet.
func (c *checker) hostNetworkPorts(p *field.Path, ports []corev1.ContainerPort) {
	for i, port := range ports {
		if c.pod.Spec.HostNetwork && port.HostPort != port.ContainerPort {
			c.add(field.Invalid(p.Index(i).Child("containerPort"), port.ContainerPort,
				"must be hostPort's value with hostNetwork"))
		}
	}
}

func (c *checker) env(p *field.Path, ct *corev1.Container) {
	for i, e := range ct.Env {
		ep := p.Child("env").Index(i)
		if c.required(ep.Child("name"), e.Name) {
			c.texts(ep.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))
		}
		if e.ValueFrom != nil {
			c.envSource(ep.Child("valueFrom"), &e)
		}
	}
	for i, e := range ct.EnvFrom {
		ep := p.Child("envFrom").Index(i)
		if e.Prefix != "" {
			c.texts(ep.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))
		}
		if (e.ConfigMapRef != nil) == (e.SecretRef != nil) {
			c.add(field.Invalid(ep, "", "must have one of configMapRef and secretRef"))
		}
		if e.ConfigMapRef != nil {
			c.objectName(ep.Child("configMapRef", "name"), e.ConfigMapRef.Name)
		}
		if e.SecretRef != nil {
			c.objectName(ep.Child("secretRef", "name"), e.SecretRef.Name)
		}
	}
}

func (c *checker) envSource(p *field.Path, e *corev1.EnvVar) {
	from := e.ValueFrom
	n := countSet(*from)
	if n != 1 || e.Value != "" {
		c.add(field.Invalid(p, "", "must have one source, and value must be empty then"))
	}
	if from.FieldRef != nil {
		c.fieldRef(p.Child("fieldRef"), from.FieldRef, envFields)
	}
	if from.ResourceFieldRef != nil {
		c.resourceRef(p.Child("resourceFieldRef"), from.ResourceFieldRef, false)
	}
	if r := from.ConfigMapKeyRef; r != nil {
		c.objectName(p.Child("configMapKeyRef", "name"), r.Name)
		c.dataKey(p.Child("configMapKeyRef", "key"), r.Key)
	}
	if r := from.SecretKeyRef; r != nil {
		c.objectName(p.Child("secretKeyRef", "name"), r.Name)
		c.dataKey(p.Child("secretKeyRef", "key"), r.Key)
	}
	if r := from.FileKeyRef; r != nil {
		fp := p.Child("fileKeyRef")
		if c.required(fp.Child("key"), r.Key) {
			c.texts(fp.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))
		}
		if c.required(fp.Child("path"), r.Path) {
			c.noBacksteps(fp.Child("path"), r.Path)
		}
		if v, ok := c.volume[r.VolumeName]; !ok {
			c.add(field.NotFound(fp.Child("volumeName"), r.VolumeName))
		} else if v.EmptyDir == nil {
			c.add(field.Invalid(fp.Child("volumeName"), r.VolumeName, "must be an emptyDir"))
		}
	}
}

// objectName rejects a name that no ConfigMap or Secret can have.
func (f *findings) objectName(p *field.Path, name string) {
	if f.required(p, name) {
		f.subdomain(p, name)
	}
}

func (f *findings) dataKey(p *field.Path, key string) {
	if f.required(p, key) {
		f.texts(p, key, validation.IsConfigMapKey(key))
	}
}

func (c *checker) mounts(p *field.Path, ct *corev1.Container) {
	at := map[string]bool{}
	for i, m := range ct.VolumeMounts {
		mp := p.Index(i)
		if _, ok := c.volume[m.Name]; c.required(mp.Child("name"), m.Name) && !ok {
			c.add(field.NotFound(mp.Child("name"), m.Name))
		}
		if c.required(mp.Child("mountPath"), m.MountPath) && at[m.MountPath] {
			c.add(field.Invalid(mp.Child("mountPath"), m.MountPath, "must be unique"))
		}
		at[m.MountPath] = true
		c.mountRules(mp, &m, ct)
	}
}

func (c *checker) mountRules(p *field.Path, m *corev1.VolumeMount, ct *corev1.Container) {
	c.below(p.Child("subPath"), m.SubPath)
	c.below(p.Child("subPathExpr"), m.SubPathExpr)
	if m.SubPath != "" && m.SubPathExpr != "" {
		c.add(field.Invalid(p.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath exclude each other"))
	}
	if prop := m.MountPropagation; prop != nil {
		oneOf(c.findings, p.Child("mountPropagation"), *prop, corev1.MountPropagationNone,
			corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional)
		if *prop == corev1.MountPropagationBidirectional && !podutil.Privileged(ct.SecurityContext) {
			c.add(field.Forbidden(p.Child("mountPropagation"), "Bidirectional is for privileged containers"))
		}
	}
	if r := m.RecursiveReadOnly; r != nil {
		rp := p.Child("recursiveReadOnly")
		oneOf(c.findings, rp, *r,
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)
		shared := m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone
		if *r != corev1.RecursiveReadOnlyDisabled && (!m.ReadOnly || shared) {
			c.add(field.Forbidden(rp, "needs readOnly: true and no mountPropagation"))
		}
	}
}

func (c *checker) devices(p *field.Path, ct *corev1.Container) {
	for i, d := range ct.VolumeDevices {
		dp := p.Index(i)
		v, ok := c.volume[d.Name]
		switch {
		case !c.required(dp.Child("name"), d.Name):
		case !ok:
			c.add(field.NotFound(dp.Child("name"), d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			c.add(field.Invalid(dp.Child("name"), d.Name,
				"only a persistentVolumeClaim or ephemeral volume can be a block device"))
		}
		if c.required(dp.Child("devicePath"), d.DevicePath) {
			c.noBacksteps(dp.Child("devicePath"), d.DevicePath)
		}
	}
}

// below rejects an optional path that is absolute or contains "..".
func (f *findings) below(p *field.Path, file string) {
	if path.IsAbs(file) {
		f.add(field.Invalid(p, file, "must be a relative path"))
	}
	f.noBacksteps(p, file)
}

func (f *findings) noBacksteps(p *field.Path, file string) {
	if slices.Contains(strings.Split(file, "/"), "..") {
		f.add(field.Invalid(p, file, "must not contain '..'"))
	}
}

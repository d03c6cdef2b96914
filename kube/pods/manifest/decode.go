package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/nodelet/nodelet/internal/strict"
	"github.com/nodelet/nodelet/kube/client"
)

// MaxSize is the largest size of a manifest, in bytes, as in the kubelet.
const MaxSize = 10 << 20

// File is the content of a manifest file.
type File struct {
	Pods       []Pod
	ConfigMaps []*corev1.ConfigMap
	Secrets    []*corev1.Secret
	// Ignored says which documents and items of lists do not count, because of their kind, and which pods of a PodList,
	// because another one has their name.
	Ignored []error
}

// Pod is a static pod of a manifest. Its Hash is the UID that the kubelet of the version that nodelet follows gives it,
// and changes with the manifest. The pod has it as UID, unless the manifest has one. Older are the UIDs that kubelets
// of older versions give to the same manifest.
type Pod struct {
	*corev1.Pod
	Hash  string
	Older []string
}

// Own reports whether the manifest sets the UID of the pod.
func (p Pod) Own() bool { return string(p.UID) != p.Hash }

// Gets reports whether a version of the kubelet gives this UID to the manifest: then it has not changed since.
func (p Pod) Gets(uid types.UID) bool {
	return string(uid) == p.Hash || slices.Contains(p.Older, string(uid))
}

// Origin is where a manifest comes from. The UIDs of the pods depend on it.
type Origin struct {
	// NodeName is the node's name; pods get it as a suffix.
	NodeName string
	// Source is podutil.SourceFile or podutil.SourceHTTP.
	Source string
	// Where is the path or URL.
	Where string
}

// Parse reads YAML or JSON, one document or many. Each document is a v1 Pod, ConfigMap or Secret, or a list of them
// (PodList, List). One of another kind, or such an item of a list, is ignored, but not in the first document, which
// alone the kubelet reads, and not if the kind may be misspelled. If there is an error, nothing of the file counts.
// There is an error for each invalid document, which names the document if there are several, its kind and name, and
// the field.
func Parse(data []byte, o Origin) (File, []error) {
	p := parser{origin: o, seen: map[string]bool{}}
	if len(data) > MaxSize {
		return File{}, []error{fmt.Errorf("file is larger than %d MiB", MaxSize>>20)}
	}
	chunks := split(data)
	if len(chunks) == 0 {
		return File{}, []error{errors.New("file is empty: remove it to stop its pods")}
	}
	for i, c := range chunks {
		if len(chunks) > 1 {
			p.where = fmt.Sprintf("document %d (line %d): ", i+1, c.line)
		}
		p.later = i > 0
		err := p.chunk(c)
		if p.ofOtherKind(err) {
			p.ignore(err)
		} else if err != nil {
			p.errs = append(p.errs, fmt.Errorf("%s%w", p.where, err))
		}
	}
	if len(p.errs) > 0 {
		return File{}, p.errs
	}
	return p.file, nil
}

type parser struct {
	origin Origin
	file   File
	seen   map[string]bool // kind/namespace/name
	where  string          // the document that is read now, if there are several
	later  bool            // it is not the first one
	errs   []error
}

// ofOtherKind reports whether an error is that of an object that does not count because of its kind.
func (p *parser) ofOtherKind(err error) bool {
	_, other := errors.AsType[otherKindError](err)
	return other && p.later
}

// ignore notes what does not count, and why.
func (p *parser) ignore(err error) {
	p.file.Ignored = append(p.file.Ignored, fmt.Errorf("%s%w", p.where, err))
}

// otherKindError is the error of an object whose kind a manifest cannot have.
type otherKindError struct{ metav1.TypeMeta }

func (e otherKindError) Error() string {
	return fmt.Sprintf("apiVersion %q with kind %q is not supported: a manifest may have v1 Pods, ConfigMaps and Secrets",
		e.APIVersion, e.Kind)
}

func (p *parser) chunk(c chunk) error {
	data, err := toJSON(c.text)
	if err != nil {
		return errors.New(c.shiftLines(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")))
	}
	return p.object(data)
}

// toJSON returns JSON unchanged: in YAML its tabs would be errors.
func toJSON(text []byte) ([]byte, error) {
	if t := bytes.TrimSpace(text); len(t) > 0 && t[0] == '{' && json.Valid(t) {
		return t, nil
	}
	return strict.ToJSON(text)
}

func (p *parser) object(data []byte) error {
	var head struct {
		metav1.TypeMeta
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return errors.New("not an API object: " + strings.TrimPrefix(err.Error(), "json: "))
	}
	if head.APIVersion == "" || head.Kind == "" {
		return errors.New("apiVersion or kind is missing, want apiVersion: v1 and kind: Pod")
	}
	v1 := head.APIVersion == "v1"
	switch head.Kind {
	case "Pod", "ConfigMap", "Secret":
		if v1 {
			if err := p.item(head.Kind, data); err != nil {
				return fmt.Errorf("%s %q: %w", head.Kind, head.Metadata.Name, err)
			}
			return nil
		}
	case "PodList", "List":
		if v1 {
			return p.list(head.Kind, data)
		}
	default:
		if gvk := head.GroupVersionKind(); gvk.Group != "" || client.Scheme.Recognizes(gvk) {
			return otherKindError{head.TypeMeta}
		}
	}
	// It may be misspelled: another API has a kind of that name, or the core API does not have that kind.
	return fmt.Errorf("kind: %s has no %q: a manifest may have v1 Pods, ConfigMaps and Secrets",
		head.APIVersion, head.Kind)
}

func (p *parser) list(kind string, data []byte) error {
	var l struct {
		metav1.TypeMeta
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := decodeStrict(data, &l); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	for i, item := range l.Items {
		read := p.object
		if kind == "PodList" {
			read = func(data []byte) error { return p.item("Pod", data) } // its items have no kind
		}
		err := read(item)
		if err == nil {
			continue
		}
		_, again := errors.AsType[duplicateError](err)
		ignored := p.ofOtherKind(err) || again && kind == "PodList" // of which the kubelet takes the first
		err = fmt.Errorf("%s: items[%d]: %v", kind, i, err)         // not %w: no list is ignored
		if !ignored {
			return err
		}
		p.ignore(err)
	}
	return nil
}

func (p *parser) item(kind string, data []byte) error {
	switch kind {
	case "Pod":
		pod := &corev1.Pod{}
		if err := decodeStrict(data, pod); err != nil {
			return err
		}
		uids := p.origin.uids(pod)
		if err := p.origin.makeStatic(pod, uids[0]); err != nil {
			return err
		}
		if err := p.once(kind, pod); err != nil {
			return err
		}
		p.file.Pods = append(p.file.Pods, Pod{pod, uids[0], uids[1:]})
		return nil
	case "ConfigMap":
		c := &corev1.ConfigMap{}
		if err := decodeStrict(data, c); err != nil {
			return err
		}
		if err := prepareConfigMap(c); err != nil {
			return err
		}
		p.file.ConfigMaps = append(p.file.ConfigMaps, c)
		return p.once(kind, c)
	default:
		s := &corev1.Secret{}
		if err := decodeStrict(data, s); err != nil {
			return err
		}
		if err := prepareSecret(s); err != nil {
			return err
		}
		p.file.Secrets = append(p.file.Secrets, s)
		return p.once(kind, s)
	}
}

// duplicateError is the error of the second object of a kind and name.
type duplicateError struct{ kind, namespace, name string }

func (e duplicateError) Error() string {
	return fmt.Sprintf("duplicate object in this file: there is another %s %s/%s", e.kind, e.namespace, e.name)
}

func (p *parser) once(kind string, o metav1.Object) error {
	k := kind + "/" + o.GetNamespace() + "/" + o.GetName()
	if p.seen[k] {
		return duplicateError{kind, o.GetNamespace(), o.GetName()}
	}
	p.seen[k] = true
	return nil
}

// decodeStrict decodes JSON into a typed object. Unknown and duplicate fields are errors, and so is a value of the
// wrong type; the error names the path of the field, and does not contain the values of Secrets.
func decodeStrict(data []byte, into any) error {
	problems, err := kjson.UnmarshalStrict(data, into)
	if err == nil && len(problems) == 0 {
		return nil
	}
	tree, _ := strict.Tree(data) // err says it if this is no JSON
	var texts []string
	for _, e := range strict.Check(tree, into) {
		if _, secret := into.(*corev1.Secret); secret && e.HasValue {
			e.Text = "invalid value (not shown, because it is that of a Secret)"
		}
		texts = append(texts, e.Error())
	}
	if len(texts) > 0 {
		return errors.New(strings.Join(texts, ", "))
	}
	return errors.Join(append(problems, err)...) // a field that is there twice
}

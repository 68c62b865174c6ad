package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// apiServer is as much of an API server as one driver needs: it speaks protobuf
// as the real one does, keeps objects, and tells of changes. It knows no
// selectors and no subresources, and checks nothing.
type apiServer struct {
	url string

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]runtime.Object // by resource, then namespace/name
	watchers map[chan watch.Event]string          // with their resource
}

// watchRoom is how many changes a watcher may be behind; one that is further
// behind is cut off, and begins anew.
const watchRoom = 256

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{objects: map[string]map[string]runtime.Object{}, watchers: map[chan watch.Event]string{}}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections() // watches never end by themselves
		server.Close()
	})
	s.url = server.URL
	return s
}

// kubeconfig writes a file to reach the server with, and gives its path.
func (s *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: s.url}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// add puts an object there.
func (s *apiServer) add(t *testing.T, resource string, object runtime.Object) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.put(resource, object, watch.Added); err != nil {
		t.Fatal(err)
	}
}

// slices are the ResourceSlices there now.
func (s *apiServer) slices() []*resourceapi.ResourceSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*resourceapi.ResourceSlice
	for _, object := range s.objects["resourceslices"] {
		all = append(all, object.(*resourceapi.ResourceSlice).DeepCopy())
	}
	return all
}

// listOf is an empty list of what a resource has.
func listOf(resource string) (runtime.Object, bool) {
	switch resource {
	case "nodes":
		return &corev1.NodeList{}, true
	case "events":
		return &eventsv1.EventList{}, true
	case "resourceclaims":
		return &resourceapi.ResourceClaimList{}, true
	case "resourceslices":
		return &resourceapi.ResourceSliceList{}, true
	}
	return nil, false
}

// target is what the path of a request names.
type target struct{ resource, namespace, name string }

func (t target) key() string { return t.namespace + "/" + t.name }

// parseTarget reads /api/v1/... and /apis/GROUP/VERSION/....
func parseTarget(path string) target {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	parts = parts[min(len(parts), map[string]int{"api": 2, "apis": 3}[parts[0]]):]
	var t target
	if len(parts) > 2 && parts[0] == "namespaces" {
		t.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 0 {
		t.resource = parts[0]
	}
	if len(parts) > 1 {
		t.name = strings.Join(parts[1:], "/")
	}
	return t
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	where := parseTarget(r.URL.Path)
	if r.URL.Query().Get("watch") != "" {
		s.watch(w, r, where.resource)
		return
	}
	object, err := s.serve(r, where)
	if err != nil {
		var status apierrors.APIStatus
		if s, ok := err.(apierrors.APIStatus); ok {
			status = s
		} else {
			status = apierrors.NewInternalError(err)
		}
		answer := status.Status()
		answer.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(answer.Code))
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = protobuf().Serializer.Encode(object, w)
}

func (s *apiServer) serve(r *http.Request, where target) (runtime.Object, error) {
	list, known := listOf(where.resource)
	gr := schema.GroupResource{Resource: where.resource}
	if !known {
		return nil, apierrors.NewNotFound(gr, where.name)
	}
	var sent runtime.Object
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if sent, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.objects[where.resource][where.key()]
	switch {
	case r.Method == http.MethodPost:
		return s.put(where.resource, sent, watch.Added)
	case r.Method == http.MethodGet && where.name == "":
		return s.list(where.resource, list)
	case have == nil:
		return nil, apierrors.NewNotFound(gr, where.name)
	case r.Method == http.MethodGet:
		return have, nil
	case r.Method == http.MethodPut:
		return s.put(where.resource, sent, watch.Modified)
	case r.Method == http.MethodDelete:
		delete(s.objects[where.resource], where.key())
		return s.changed(where.resource, have.DeepCopyObject(), watch.Deleted)
	}
	return nil, apierrors.NewMethodNotSupported(gr, r.Method)
}

// put keeps an object. The caller holds mu.
func (s *apiServer) put(resource string, object runtime.Object, event watch.EventType) (runtime.Object, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	if event == watch.Added {
		if m.GetName() == "" {
			m.SetName(fmt.Sprintf("%s%05d", m.GetGenerateName(), s.version))
		}
		if m.GetUID() == "" {
			m.SetUID(types.UID("uid-" + m.GetName()))
		}
	}
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]runtime.Object{}
	}
	if object, err = s.changed(resource, object, event); err != nil {
		return nil, err
	}
	s.objects[resource][m.GetNamespace()+"/"+m.GetName()] = object
	return object, nil
}

// changed gives an object the next version and tells the watchers. The caller
// holds mu.
func (s *apiServer) changed(resource string, object runtime.Object, event watch.EventType) (runtime.Object, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	s.version++
	m.SetResourceVersion(fmt.Sprint(s.version))
	if err := name(object); err != nil {
		return nil, err
	}
	for c, wanted := range s.watchers {
		if wanted != resource {
			continue
		}
		select {
		case c <- watch.Event{Type: event, Object: object.DeepCopyObject()}:
		default:
			delete(s.watchers, c)
			close(c)
		}
	}
	return object, nil
}

// list fills a list. The caller holds mu.
func (s *apiServer) list(resource string, list runtime.Object) (runtime.Object, error) {
	var items []runtime.Object
	for _, object := range s.objects[resource] {
		items = append(items, object)
	}
	if err := meta.SetList(list, items); err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(fmt.Sprint(s.version))
	return list, name(list)
}

// watch sends what is there, the bookmark that ends it, and every change from
// then on.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	stream := protobuf().StreamSerializer
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	frames := stream.NewFrameWriter(w)
	send := func(e watch.Event) bool {
		data, err := runtime.Encode(protobuf().Serializer, e.Object)
		if err != nil {
			return false
		}
		err = stream.Encode(&metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: data}}, frames)
		w.(http.Flusher).Flush()
		return err == nil
	}
	changes := make(chan watch.Event, watchRoom)
	s.mu.Lock()
	first := s.now(resource)
	s.watchers[changes] = resource
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, changes)
	}()
	for _, e := range first {
		if !send(e) {
			return
		}
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-changes:
			if !ok || !send(e) {
				return
			}
		}
	}
}

// now is what a new watcher is told first. The caller holds mu.
func (s *apiServer) now(resource string) []watch.Event {
	var events []watch.Event
	for _, object := range s.objects[resource] {
		events = append(events, watch.Event{Type: watch.Added, Object: object})
	}
	end := &resourceapi.ResourceSlice{} // the only resource that a driver watches
	end.ResourceVersion = fmt.Sprint(s.version)
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	if err := name(end); err != nil {
		return events
	}
	return append(events, watch.Event{Type: watch.Bookmark, Object: end})
}

// name has an object say what it is, as everything on the wire does.
func name(object runtime.Object) error {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return err
	}
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	return nil
}

func protobuf() runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return info
}

// socketDir is a new directory with a short path: that of a socket has at most
// 107 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

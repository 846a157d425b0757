// Makes releases of Isthmus; never part of it.
module github.com/isthmus-net/isthmus/deploy/release

go 1.26.8

require (
	github.com/google/licenseclassifier/v2 v2.0.0
	github.com/secure-systems-lab/go-securesystemslib v0.11.1
	github.com/spdx/tools-golang v0.5.7
	golang.org/x/mod v0.42.0
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/sergi/go-diff v1.1.0 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

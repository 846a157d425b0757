module github.com/isthmus-net/isthmus

go 1.26.0
